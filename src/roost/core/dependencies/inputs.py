"""Outputs of dependencies as inputs. A dependent gets them when its condition holds, and keeps them.

So a service starts again with the same files when the job that made them is long forgotten. A retry by a user takes
the present outputs, if there are any.
"""

from roost.core.dependencies.conditions import evaluate_for
from roost.core.state.files import give_files
from roost.core.state.state import State
from roost.model.events import WorkloadSpec
from roost.model.keys import instance_key
from roost.model.limits import INPUT_FOLDERS_MAX
from roost.model.reasons.attempts import DependencyWithoutOutputs
from roost.model.reasons.subjects import WorkloadRef
from roost.model.records.files import InputFiles
from roost.model.records.instance import Instance
from roost.model.records.workload import After, Policy, Workload
from roost.model.states import FINISHED

Files = tuple[InputFiles, ...]


def take_files(
    state: State, workload: Workload, condition: After, element: Instance | None = None
) -> DependencyWithoutOutputs | None:
    """Give a dependent, or one of its elements, the outputs of a dependency whose condition holds. Why it cannot."""
    if not _wants(state, workload.policy, condition.workload):
        return None
    found = files_of(state, workload.policy, condition, element.index if element is not None else None)
    if isinstance(found, DependencyWithoutOutputs):
        return found
    give_files(state, element or workload, condition.workload, found)
    return None


def missing_files(
    state: State, workload: Workload, condition: After, index: int | None = None
) -> DependencyWithoutOutputs | None:
    """Why a dependent cannot have its inputs, although the condition holds."""
    is_wanted = _wants(state, workload.policy, condition.workload)
    if not is_wanted or not evaluate_for(state, condition, index).satisfied:
        return None
    found = files_of(state, workload.policy, condition, index)
    return found if isinstance(found, DependencyWithoutOutputs) else None


def take_present_files(
    state: State, workload: Workload, conditions: tuple[After, ...], element: Instance | None = None
) -> None:
    """Take the outputs as they are now, where a condition still holds; else those of before stay."""
    for condition in conditions:
        index = element.index if element is not None else None
        if condition.each == (index is not None) and evaluate_for(state, condition, index).satisfied:
            take_files(state, workload, condition, element)


def files_for_version(
    state: State, known: Workload, wanted: WorkloadSpec, settled: tuple[After, ...]
) -> Files | DependencyWithoutOutputs:
    """The files of a new version that it does not wait for: the present ones, else those that the workload has."""
    if wanted.input_files:
        return wanted.input_files
    found: Files = ()
    for condition in settled:
        if condition.each or not _wants(state, wanted.policy, condition.workload):
            continue
        kept = tuple(item for item in known.input_files if item.workload == condition.workload)
        is_satisfied = evaluate_for(state, condition, None).satisfied
        present = files_of(state, wanted.policy, condition) if is_satisfied else _without(condition.workload)
        if isinstance(present, DependencyWithoutOutputs) and not kept:
            return present
        found += kept if isinstance(present, DependencyWithoutOutputs) else present
    return found


def files_of(
    state: State, policy: Policy, condition: After, index: int | None = None
) -> Files | DependencyWithoutOutputs:
    """The outputs of a dependency: of its one instance, of the same element, or of all with a folder each.

    An instance that had nothing to keep has no folder; outputs that were to be kept and are not are missing.
    """
    key = condition.workload
    other = state.workloads.get(key)
    if other is None or (index is None and other.count > INPUT_FOLDERS_MAX):
        return _without(key, index)
    found: list[InputFiles] = []
    for number in range(other.count) if index is None else (index,):
        instance = state.instances.get(instance_key(key, number))
        outputs = instance.outputs if instance is not None and instance.state in FINISHED else None
        if outputs is not None and outputs.files is not None:
            found.append(InputFiles(key, outputs.files, number if index is None and other.count > 1 else None))
        elif outputs is not None and outputs.are_lost:
            return _without(key, number)
    if not found and any(item.workload == key and not item.optional for item in policy.inputs):
        return _without(key, index)
    return tuple(found)


def _wants(state: State, policy: Policy, key: str) -> bool:
    """Optional inputs from a workload that is forgotten are not missed; those that a dependent has stay."""
    return any(item.workload == key and (not item.optional or key in state.workloads) for item in policy.inputs)


def _without(key: str, index: int | None = None) -> DependencyWithoutOutputs:
    return DependencyWithoutOutputs(WorkloadRef.of(key), index)
