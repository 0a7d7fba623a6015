"""What decides beside dependencies whether a workload starts: its condition, and approval.

A workload that needs approval waits for itself: a pending condition on its own key, which holds once it is approved.
"""

from typing import Any

import msgspec

from roost.core.dependencies.conditions import ending_of
from roost.core.passed_results import name_for_dependents, result_of
from roost.core.state.state import State
from roost.model.limits import RESULT_VARIABLE_BYTES_MAX, RESULT_VARIABLES_BYTES_MAX
from roost.model.reasons.attempts import ConditionFalse, ConditionUnclear
from roost.model.records.workload import After, Workload
from roost.model.spec.document import decode_document
from roost.model.spec.gates import decide
from roost.model.states import InstanceState, Milestone

CONDITION_UNITS = 20  # of work: a condition over 64 KiB of results takes some milliseconds, one over states 50 µs


def condition_refusal(state: State, workload: Workload) -> ConditionFalse | ConditionUnclear | None:
    """Why a workload whose dependencies are over does not start; None: it does."""
    rule = workload.policy.condition
    if not rule:
        return None
    document = decode_document(workload.document)
    env = {name: value for name, value in document.env.items() if isinstance(value, str)}
    answer = decide(rule, _needs(state, workload), env)
    if answer.yes:
        return None
    return ConditionUnclear(rule, answer.error) if answer.error else ConditionFalse(rule)


def end_of(refusal: ConditionFalse | ConditionUnclear) -> InstanceState:
    """A condition that is false skips; one that cannot be evaluated is a mistake, which must be seen."""
    return InstanceState.SKIPPED if isinstance(refusal, ConditionFalse) else InstanceState.FAILED


def approval_of(workload: Workload) -> tuple[After, ...]:
    """The condition on itself that a workload still has to wait for."""
    is_open = bool(workload.policy.approval_role) and workload.approval is None
    return (After(workload.key, Milestone.APPROVED),) if is_open else ()


def _needs(state: State, workload: Workload) -> dict[str, Any]:
    """State and result of every dependency by its name. A result that is too large for a variable is null."""
    found: dict[str, Any] = {}
    room = RESULT_VARIABLES_BYTES_MAX
    for condition in workload.policy.after:
        other = state.workloads.get(condition.workload)
        if other is None:
            continue
        data = result_of(state, condition, other, 0)
        result = None
        if isinstance(data, bytes) and len(data) <= min(room, RESULT_VARIABLE_BYTES_MAX):
            result = msgspec.json.decode(data)
            room -= len(data)
        now = ending_of(state, other) if other.finished_ms else InstanceState.RUNNING
        found[name_for_dependents(other)] = {"state": str(now), "result": result}
    return found
