"""Runs of pipelines as the server knows them: the jobs that share the labels `pipeline` and `run`."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from roost.cli.common.exit_codes import Failure
from roost.cli.common.session import existing
from roost.cli.common.targets import Target
from roost.client import Client
from roost.model.spec.pipelines.definition import ACTIONS_MAX
from roost.model.spec.pipelines.labels import PIPELINE, RUN, action_of, name_of
from roost.model.states import WORST_FIRST
from roost.schema.work import InstanceView, WorkloadView

LISTED_MAX = 5_000  # actions read for a list of runs: five pages, some hundred runs
LOOKED_MAX = 1_000  # elements of one action read for its table: one page


class PipelineRun(NamedTuple):
    """One run of a pipeline: its actions in the order in which they were submitted."""

    project: str
    pipeline: str
    id: str
    workloads: list[WorkloadView]

    @property
    def name(self) -> str:
        """What the names of its jobs begin with; two runs of one project never share it."""
        return f"{name_of(self.pipeline)}-{self.id}"

    @property
    def state(self) -> str:
        """The state of all actions, by the same rule as for the instances of a workload; skipped ones do not count."""
        states = [str(workload.state) for workload in self.workloads]
        if all(workload.is_over for workload in self.workloads):
            ran = [state for state in states if state != "skipped"] or states
            return next((state for state in WORST_FIRST if state in ran), "succeeded")
        return next((state for state in ("running", "stopping") if state in states), "queued")

    @property
    def submitted_ms(self) -> int:
        return min(workload.submitted_ms for workload in self.workloads)

    @property
    def finished_ms(self) -> int | None:
        ends = [workload.finished_ms for workload in self.workloads]
        return None if None in ends else max(end for end in ends if end)

    def __str__(self) -> str:
        return str(Target(self.project, self.name))


def runs_of(workloads: Iterable[WorkloadView]) -> list[PipelineRun]:
    """Runs, newest first, of workloads sorted newest first. Other uses of our labels are ignored."""
    found: dict[tuple[str, str, str], PipelineRun] = {}
    for workload in workloads:
        if action_of(workload.name, workload.labels):
            key = (workload.project, workload.labels[PIPELINE], workload.labels[RUN])
            found.setdefault(key, PipelineRun(*key, [])).workloads.append(workload)
    for run in found.values():
        run.workloads.reverse()
    return list(found.values())


def list_runs(client: Client, project: str, pipeline: str = "") -> list[PipelineRun]:
    """Runs, newest first; of the pipeline with that title or name."""
    label = f"{PIPELINE}={pipeline}" if pipeline else PIPELINE
    found = client.workloads.list(project=project, label=label, limit=LISTED_MAX)
    if pipeline and not found:
        return [run for run in list_runs(client, project) if name_of(run.pipeline) == pipeline]
    runs = runs_of(found)
    return runs[:-1] if len(found) == LISTED_MAX else runs  # of the oldest one not all actions may be here


def find_run(client: Client, project: str, word: str) -> PipelineRun:
    """The run of that id, or of that name: PIPELINE-ID."""
    pipeline, _, id = word.rpartition("-")
    found = runs_of(client.workloads.list(project=project, label=f"{RUN}={id}", limit=ACTIONS_MAX * 10))
    found = [run for run in found if not pipeline or name_of(run.pipeline) == pipeline]
    if not found:
        raise Failure(f"there is no run {word} in project {project}", "`roost ci list` shows stored runs")
    if len(found) > 1:
        raise Failure(f"{word} may be {' or '.join(run.name for run in found[:5])}", "give the whole name")
    return found[0]


def cancel_run(client: Client, workloads: Sequence[WorkloadView]) -> list[WorkloadView]:
    """Cancel unfinished actions: dependents first, so that nothing starts meanwhile."""
    stopped = []
    for workload in reversed(workloads):
        if not workload.is_over:
            stopped.append(existing(partial(client.workloads.cancel, workload.project, workload.name)))
    return [workload for workload in stopped if workload is not None]  # None: finished and deleted meanwhile


def elements_of(client: Client, workload: WorkloadView) -> list[InstanceView]:
    return client.instances.list(workload.project, workload.name, limit=LOOKED_MAX)
