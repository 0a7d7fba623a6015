"""Sets of files that records name: the inputs of workloads and their versions, the outputs and inputs of instances.

A blob may be deleted once no record names it, so the records that name a set are counted, by project.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from roost.core.state.records import FileUsage, StoredRecords
from roost.model.keys import split_workload_key
from roost.model.records.cache import CacheEntry
from roost.model.records.files import FileSet, InputFiles, Outputs
from roost.model.records.instance import Instance
from roost.model.records.project import FILE_BYTES, FILES
from roost.model.records.workload import Workload


class Excess(NamedTuple):
    """What does not fit into the quota of a project: so much is used, so much is wanted, so much is allowed."""

    name: str
    used: int
    wanted: int
    most: int


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


def set_cache(state: StoredRecords, project: str, key: str, entry: CacheEntry | None) -> None:
    """An entry of the cache of a project is new, was used, or is gone. The caller has it stored."""
    entries = state.caches.setdefault(project, {})
    before = entries.pop(key, None)
    if entry is not None:
        entries[key] = entry
        _count(state, project, entry.files, 1)
    if before is not None:
        _count(state, project, before.files, -1)
    if not entries:
        del state.caches[project]


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


def project_full(state: StoredRecords, project: str, more: Iterable[FileSet]) -> Excess | None:
    """Whether sets of files are too much for the quota of a project. A set that it has already takes no room."""
    setting = state.projects.get(project)
    if setting is None or setting.counted or not {FILES, FILE_BYTES} & setting.quota.keys():
        return None
    named, used = state.file_sets.get(project, {}), state.file_usage.get(project, FileUsage())
    new = [files for files in dict.fromkeys(more) if files not in named]
    wanted = {FILES: sum(files.files for files in new), FILE_BYTES: sum(files.size for files in new)}
    for name, present in ((FILES, used.files), (FILE_BYTES, used.size)):
        most = setting.quota.get(name)
        if most is not None and wanted[name] and present + wanted[name] > most:
            return Excess(name, present, wanted[name], most)
    return None


def byte_room(state: StoredRecords, project: str, most: int) -> int:
    """How many bytes of files a project may have beside those it has; `most` without such a quota."""
    setting = state.projects.get(project)
    if setting is None or setting.counted or FILE_BYTES not in setting.quota:
        return most
    return max(0, min(most, setting.quota[FILE_BYTES] - state.file_usage.get(project, FileUsage()).size))


def _count(state: StoredRecords, project: str, files: FileSet, sign: int) -> None:
    named = state.file_sets.setdefault(project, {})
    before = named.get(files, 0)
    named[files] = before + sign
    if not before or not named[files]:
        used = state.file_usage.get(project, FileUsage())
        state.file_usage[project] = FileUsage(used.files + sign * files.files, used.size + sign * files.size)
    if not named[files]:
        del named[files]
    if not named:
        del state.file_sets[project], state.file_usage[project]
