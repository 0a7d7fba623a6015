"""Files, checked from outside: what records on disk name is in the blob store, and outputs are of their attempt."""

from collections.abc import Container, Iterator

from roost.core.state.files import sets_of_instance, sets_of_workload
from roost.model.protocol import Run
from roost.model.records.files import FileSet, OutputProblem, covers
from roost.model.records.instance import Instance
from roost.model.spec.document import outputs_in
from roost.model.spec.files import OutputsWhen
from roost.model.states import InstanceState
from roost.sim.checks.oracle import Oracle, policy_of
from roost.sim.checks.records import Records
from roost.sim.world.file_sets import parts_of
from roost.sim.world.world import Wrong

COLLECTED = ("exited", "timed_out")  # causes of ends after which outputs are collected


class FileCheckers:
    def __init__(self, truth: Oracle, records: Records) -> None:
        self._truth = truth
        self._records = records
        self.stored: Container[str] = ()  # what is in the blob store
        self.forgetful = False  # records were lost, and with them what they named

    def committed(self) -> None:
        for _, _, workload in (*self._records.written("workload"), *self._records.written("version")):
            self._are_whole(workload.key, sets_of_workload(workload))
        for key, _, instance in self._records.written("instance"):
            self._are_whole(key, sets_of_instance(instance))
            self._outputs_are_true(instance)

    def ordered(self, run: Run) -> None:
        """An agent fetches these: all that its document asks for, and a record names them, so they stay."""
        for item in policy_of(run.document).inputs:
            if not any(covers(item, given) for given in run.inputs):
                raise Wrong(f"{run.workload}.{run.index} is to run without its input {item}")
        for given in run.inputs:
            if given.digest and not self.forgetful and given.digest not in self._named():
                raise Wrong(f"{run.workload}.{run.index} is to run with {given.digest}, which no record names")

    def deleted(self, digest: str) -> None:
        for manifest in self._named() if not self.forgetful else ():
            if digest in parts_of(manifest):
                raise Wrong(f"{digest} was deleted, and a record names {manifest}")

    def fetch_failed(self, run: Run) -> None:
        instance = self._records.now["instance"].get(f"{run.workload}.{run.index}")
        if instance is not None and instance.token == run.token and not self.forgetful:
            raise Wrong(f"inputs of {run.workload}.{run.index} attempt {run.token} are not in the blob store")

    def _named(self) -> dict[str, None]:
        now = self._records.now
        found = {files.digest: None for item in now["instance"].values() for files in sets_of_instance(item)}
        for kind in ("workload", "version"):
            found |= {files.digest: None for item in now[kind].values() for files in sets_of_workload(item)}
        return found

    def _are_whole(self, key: str, sets: Iterator[FileSet]) -> None:
        for files in sets:
            gone = [part for part in parts_of(files.digest) if part not in self.stored]
            if gone and not self.forgetful:
                raise Wrong(f"{key} names {files.digest}, of which {gone} are not in the blob store")

    def _outputs_are_true(self, instance: Instance) -> None:
        """They are those of the present attempt, as soon as that has ended: all of them, or none with a reason."""
        outputs, ending = instance.outputs, self._truth.endings.get(instance.token)
        if instance.log_size is None or ending is None:
            if outputs is not None:
                raise Wrong(f"{instance.key} has outputs, and attempt {instance.token} has not ended")
            return
        is_success = (ending.cause, ending.code) == ("exited", 0)
        blocks = outputs_in(self._records.spec_of(instance).document)
        wanted = [block for block in blocks if is_success or block.when == OutputsWhen.ALWAYS]
        if outputs is None:
            if wanted and ending.cause in COLLECTED and is_success:
                raise Wrong(f"{instance.key} has ended well in attempt {instance.token}, and has no outputs")
            return
        lost = {OutputProblem.NOT_STORED, OutputProblem.PROJECT_FULL} & {gap.problem for gap in outputs.gaps}
        if instance.state == InstanceState.SUCCEEDED and outputs.required_gaps:
            raise Wrong(f"{instance.key} has succeeded without {outputs.required_gaps}")
        if outputs.files is None and lost:
            return
        if outputs != self._truth.left(instance.token, tuple(wanted)):
            raise Wrong(f"{instance.key} has {outputs}, which attempt {instance.token} has not left")
