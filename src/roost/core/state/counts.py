"""Invariants of what is counted from the records: bytes of results, and records that name sets of files."""

from collections import Counter
from collections.abc import Iterator

from roost.core.state.files import sets_of_instance, sets_of_workload
from roost.core.state.state import State
from roost.model.keys import split_workload_key
from roost.model.records.files import FileSet


def results_are_counted(state: State) -> Iterator[str]:
    wanted: Counter[str] = Counter()
    for instance in state.instances.values():
        if instance.result is not None and instance.result.data:
            wanted[split_workload_key(instance.workload)[0]] += len(instance.result.data)
    if wanted != state.result_bytes or wanted.total() != state.result_bytes_all:
        yield f"results have {dict(wanted)} bytes, counted are {state.result_bytes} and {state.result_bytes_all}"


def named_files_are_counted(state: State) -> Iterator[str]:
    wanted: dict[str, Counter[FileSet]] = {}
    for workload in (*state.workloads.values(), *state.versions.values()):
        wanted.setdefault(workload.project, Counter()).update(sets_of_workload(workload))
    for instance in state.instances.values():
        wanted.setdefault(split_workload_key(instance.workload)[0], Counter()).update(sets_of_instance(instance))
    for project, entries in state.caches.items():
        wanted.setdefault(project, Counter()).update(entry.files for entry in entries.values())
    found = {project: sets for project, sets in wanted.items() if sets}
    if found != state.file_sets:
        yield f"records name {found}, counted are {state.file_sets}"
    usage = {project: (sum(s.files for s in sets), sum(s.size for s in sets)) for project, sets in found.items()}
    if usage != state.file_usage:
        yield f"files take {usage}, counted are {state.file_usage}"


def usage_is_counted(state: State) -> Iterator[str]:
    found = sum(len(record.workloads) for projects in state.usage.values() for record in projects.values())
    if found != state.usage_entries:
        yield f"days have {found} entries of usage, counted are {state.usage_entries}"


COUNT_RULES = (results_are_counted, named_files_are_counted, usage_is_counted)
