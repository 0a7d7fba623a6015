"""Sets of files that records name: the inputs of workloads and their versions, the outputs and inputs of instances.

A blob may be deleted once no record names it, so the records that name a set are counted, by project.
"""

from collections.abc import Iterator

from roost.core.state.records import StoredRecords
from roost.model.keys import split_workload_key
from roost.model.records.files import FileSet, InputFiles, Outputs
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload


def set_outputs(state: StoredRecords, instance: Instance, outputs: Outputs | None) -> None:
    """The outputs of the present attempt; None: it has none yet."""
    if outputs is None and instance.outputs is None:
        return
    count_instance_files(state, instance, -1)
    instance.outputs = outputs
    count_instance_files(state, instance, 1)


def give_files(state: StoredRecords, to: Workload | Instance, origin: str, files: tuple[InputFiles, ...]) -> None:
    """A dependent, or one of its elements, gets the outputs of a workload in place of those it had from there."""
    others = tuple(item for item in to.input_files if item.workload != origin)
    if (*others, *files) == to.input_files:
        return
    if isinstance(to, Workload):
        count_workload_files(state, to, -1)
        to.input_files = (*others, *files)
        count_workload_files(state, to, 1)
        state.touch_workload(to)
    else:
        count_instance_files(state, to, -1)
        to.input_files = (*others, *files)
        count_instance_files(state, to, 1)
        state.touch_instance(to)


def count_workload_files(state: StoredRecords, workload: Workload, sign: int) -> None:
    """A workload or a version of one came into the state, or left it."""
    if workload.policy.inputs:
        for files in sets_of_workload(workload):
            _count(state, workload.project, files, sign)


def count_instance_files(state: StoredRecords, instance: Instance, sign: int) -> None:
    """An instance came into the state, or left it."""
    if instance.outputs is not None or instance.input_files:
        project, _ = split_workload_key(instance.workload)
        for files in sets_of_instance(instance):
            _count(state, project, files, sign)


def sets_of_workload(workload: Workload) -> Iterator[FileSet]:
    for item in workload.policy.inputs:
        if item.files is not None:
            yield item.files
    for given in workload.input_files:
        yield given.files


def sets_of_instance(instance: Instance) -> Iterator[FileSet]:
    if instance.outputs is not None and instance.outputs.files is not None:
        yield instance.outputs.files
    for given in instance.input_files:
        yield given.files


def _count(state: StoredRecords, project: str, files: FileSet, sign: int) -> None:
    named = state.file_sets.setdefault(project, {})
    named[files] = named.get(files, 0) + sign
    if not named[files]:
        del named[files]
    if not named:
        del state.file_sets[project]
