"""Rules of inputs, outputs and garbage collection switched off, one at a time; see core.py."""

from typing import Any

from roost.agent.files.progress import FileProgress
from roost.blobs.garbage import GarbageCollector
from roost.core.dependencies import release
from roost.core.lifecycle import retention
from roost.core.nodes import reports
from roost.core.queue import place
from roost.model.reasons import attempts
from roost.sim.mutants.core import Rule, mutant, without

without(
    "outputs_are_not_stored",
    "An end is stored without the outputs that its report has.",
    (reports, "set_outputs", lambda state, instance, outputs: None),
)
without(
    "outputs_of_earlier_attempts_stay",
    "A retry begins with the outputs of the attempt before it.",
    (place, "set_outputs", lambda state, instance, outputs: None),
)
without(
    "outputs_are_not_collected",
    "An agent reports the end of a run without its outputs.",
    (FileProgress, "wanted", lambda self, ended: []),
)
without(
    "required_outputs_may_be_missing",
    "A run that exits with 0 has succeeded, whatever it left.",
    (attempts, "outputs_missing", lambda outputs: None),
)
without(
    "dependents_run_without_their_inputs",
    "A dependent is released without the outputs that are its inputs.",
    (release, "take_files", lambda state, workload, condition, element=None: None),
)
without(
    "forgotten_records_name_files",
    "Files of instances that are forgotten stay named.",
    (retention, "count_instance_files", lambda state, instance, sign: None),
)
without(
    "holds_are_not_looked_at",
    "Blobs of an upload in progress are deleted.",
    (GarbageCollector, "_held", lambda self, digest: False),
)


@mutant(GarbageCollector, "step")
def named_blobs_are_deleted(step: Rule, self: GarbageCollector, is_named: Any, now_ms: int) -> Any:
    """Old blobs are deleted, also those that a record names."""
    return step(self, lambda digest: False, now_ms)


@mutant(GarbageCollector, "hold")
def deletions_under_way_are_ignored(hold: Rule, self: GarbageCollector, *given: Any) -> Any:
    """A record may name a blob whose deletion has begun."""
    return None if hold(self, *given) is None else frozenset()
