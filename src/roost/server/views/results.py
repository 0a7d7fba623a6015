"""How results look from outside: small ones with their instance, any of them on their own."""

from typing import Any

import msgspec

from roost.core.orders import passed_to
from roost.core.passed_results import NotPassed, NotPassedBecause
from roost.core.state.state import State
from roost.model.limits import (
    RESULT_ELEMENTS_MAX,
    RESULT_INLINE_BYTES_MAX,
    RESULT_VARIABLE_BYTES_MAX,
    RESULT_VARIABLES_BYTES_MAX,
)
from roost.model.reasons.attempts import not_kept
from roost.model.records.instance import Instance
from roost.model.records.result import Result
from roost.model.records.workload import Workload
from roost.model.spec.units import show_bytes
from roost.schema.reason_text import message_of, reason_view
from roost.schema.work import InstanceResult, NotPassedView, ResultView

NOT_PASSED = {
    NotPassedBecause.TOO_LARGE: f"it has more than {show_bytes(RESULT_VARIABLE_BYTES_MAX)}",
    NotPassedBecause.TOO_MANY: f"the array has more than {RESULT_ELEMENTS_MAX} elements",
    NotPassedBecause.NO_ROOM: f"all results have more than {show_bytes(RESULT_VARIABLES_BYTES_MAX)} together",
    NotPassedBecause.SAME_VARIABLE: "another dependency has the same variable",
}


def result_view(result: Result | None) -> ResultView | None:
    if result is None:
        return None
    data = raw(result) if len(result.data) <= RESULT_INLINE_BYTES_MAX else msgspec.UNSET
    why = not_kept(result)
    return ResultView(size=len(result.data), data=data, message=message_of(why), reason=reason_view(why))


def raw(result: Result) -> Any:
    """The JSON as it is, for an answer in JSON; answers to other servers are not, and do without it."""
    return msgspec.Raw(result.data) if result.data else msgspec.UNSET


def instance_result(instance: Instance) -> InstanceResult | None:
    result = instance.result
    if result is None:
        return None
    why = not_kept(result)
    return InstanceResult(
        index=instance.index, state=instance.state, attempt=instance.attempt, size=len(result.data), data=raw(result),
        message=message_of(why), reason=reason_view(why),
    )  # fmt: skip


def not_passed_views(state: State, spec: Workload, index: int) -> list[NotPassedView]:
    return [_not_passed(item) for item in passed_to(state, spec, index).left_out]


def _not_passed(item: NotPassed) -> NotPassedView:
    return NotPassedView(item.variable, item.workload, item.because, NOT_PASSED[item.because])
