"""Results of dependencies, passed to a run in variables: ROOST_RESULT_BUILD is the result of `build` as JSON."""

import re
from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from roost.core.state.state import State
from roost.model.keys import WorkloadKey, instance_key
from roost.model.limits import RESULT_ELEMENTS_MAX, RESULT_VARIABLE_BYTES_MAX, RESULT_VARIABLES_BYTES_MAX
from roost.model.records.workload import After, Workload
from roost.model.spec.pipelines.labels import action_of, name_of, service_of
from roost.model.states import FINISHED, Milestone, WorkloadKind

NOT_IN_NAMES = re.compile("[^A-Z0-9]")


class NotPassedBecause(StrEnum):
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"  # elements of an array
    NO_ROOM = "no_room"  # beside the results of other dependencies
    SAME_VARIABLE = "same_variable"  # as another dependency


class NotPassed(NamedTuple):
    variable: str
    workload: WorkloadKey
    because: NotPassedBecause


class ResultsPassed(NamedTuple):
    variables: tuple[tuple[str, str], ...] = ()
    left_out: tuple[NotPassed, ...] = ()


def results_passed(state: State, workload: Workload, index: int, taken: Collection[str] = ()) -> ResultsPassed:
    """The results of what a run waited for until it was over. `taken`: variables of that name are others' already.

    It is derived from the state whenever the order is made: a retry gets the same, unless a dependency ran again.
    """
    awaited = [
        (condition, other, variable_of(other))
        for condition in workload.policy.after
        if (other := state.workloads.get(condition.workload)) is not None and condition.when != Milestone.STARTED
    ]
    names = Counter([name for _, _, name in awaited] + list(taken))
    variables: list[tuple[str, str]] = []
    left_out: list[NotPassed] = []
    room = RESULT_VARIABLES_BYTES_MAX
    for condition, other, name in awaited:
        found = result_of(state, condition, other, index)
        if isinstance(found, bytes):
            found = NotPassedBecause.SAME_VARIABLE if names[name] > 1 else _too_large(found, room) or found
        if isinstance(found, NotPassedBecause):
            left_out.append(NotPassed(name, WorkloadKey(condition.workload), found))
        elif found is not None:
            variables.append((name, found.decode()))
            room -= len(found)
    return ResultsPassed(tuple(variables), tuple(left_out))


def _too_large(data: bytes, room: int) -> NotPassedBecause | None:
    if len(data) > RESULT_VARIABLE_BYTES_MAX:
        return NotPassedBecause.TOO_LARGE
    return NotPassedBecause.NO_ROOM if len(data) > room else None


def variable_of(other: Workload) -> str:
    return "ROOST_RESULT_" + NOT_IN_NAMES.sub("_", name_for_dependents(other).upper())


def name_for_dependents(other: Workload) -> str:
    """The name of a workload; that of a pipeline differs from run to run, so the name of its action or service."""
    labels = dict(label.partition("=")[::2] for label in other.policy.labels if "=" in label)
    title = service_of(other.name, labels) or action_of(other.name, labels)
    return name_of(title) if title else other.name


def result_of(state: State, condition: After, other: Workload, index: int) -> bytes | NotPassedBecause | None:
    """The JSON of a dependency: of its one instance, of the same element, or a list by index with null for none."""
    if other.policy.kind != WorkloadKind.JOB:
        return None
    if other.count == 1 or condition.each:
        return _of_instance(state, other, index if condition.each else 0)
    every = [_of_instance(state, other, number) for number in range(min(other.count, RESULT_ELEMENTS_MAX))]
    if not any(every):
        return None
    if other.count > RESULT_ELEMENTS_MAX:
        return NotPassedBecause.TOO_MANY
    return b"[%b]" % b",".join(data or b"null" for data in every)


def _of_instance(state: State, workload: Workload, index: int) -> bytes | None:
    instance = state.instances.get(instance_key(workload.key, index))
    if instance is None or instance.result is None or instance.state not in FINISHED:
        return None
    return instance.result.data or None
