"""Instances: the runs of a workload, and results that are known outside of agents."""

from typing import NamedTuple

import msgspec

from roost.model.errors import Invalid, NotFound
from roost.model.events import ResultPosted
from roost.model.reasons.attempts import not_kept
from roost.model.records.result import Result, result_of
from roost.model.states import InstanceState
from roost.schema.reason_text import message_of
from roost.schema.work import InstanceDetail, InstancePage, InstanceResult, InstanceView, ResultBody, ResultPage
from roost.server.operations.context import AsOf, Call, state_at
from roost.server.operations.parameters import AfterIndex, At, Limit
from roost.server.views.results import instance_result
from roost.server.views.work import instance_detail, instance_view, instances_of
from roost.server.waiting import ScanLimit

RESULTS_PAGE_BYTES = 1 << 20  # after which a page ends: the largest one ends below 1.1 MB


class ResultData(NamedTuple):
    data: bytes
    attempt: int


async def list_instances(
    call: Call,
    project: str,
    name: str,
    only: InstanceState | None = None,
    limit: Limit = 100,
    after: AfterIndex = -1,
    at: At = "",
) -> AsOf[InstancePage]:
    """List the instances of a workload, including unstarted ones."""
    seen = await state_at(call, at)
    state, workload = seen.state, seen.workload(project, name)
    items: list[InstanceView] = []
    scan = ScanLimit()
    for index, view in instances_of(state, workload, after + 1, workload.count, call.redactor.visible):
        if not only or view.state == only:
            items.append(view)
        if (scan.is_over() or len(items) == limit) and index + 1 < workload.count:
            return seen.shows(InstancePage(state.revision, items, index))
    return seen.shows(InstancePage(state.revision, items))


async def get_instance(call: Call, project: str, name: str, index: int, at: At = "") -> AsOf[InstanceDetail]:
    """Show an instance: its story and its decision."""
    seen = await state_at(call, at)
    return seen.shows(instance_detail(seen.state, seen.workload(project, name), index, call.redactor.visible))


async def get_result(call: Call, project: str, name: str, index: int, at: At = "") -> ResultData:
    """The result of an instance, as the JSON that its last attempt wrote. 404 `no_result`: there is none, and why."""
    seen = await state_at(call, at)
    workload = seen.workload(project, name)
    view = instance_detail(seen.state, workload, index)  # whether there is such an instance
    instance = seen.state.instances.get(f"{workload.key}.{index}")
    if instance is None or instance.result is None or not instance.result.data:
        missing = not_kept(instance.result) if instance is not None else None
        none = " has no result: it wrote none" if view.is_over else f" has no result: it is {view.state}"
        message = f"{workload.key}.{index}" + ("" if missing is not None else none)
        raise NotFound(message, code="no_result", reason=missing)
    return ResultData(instance.result.data, instance.attempt)


async def list_results(
    call: Call, project: str, name: str, limit: Limit = 100, after: AfterIndex = -1, at: At = ""
) -> AsOf[ResultPage]:
    """List the results of the instances of a workload, by index."""
    seen = await state_at(call, at)
    state, workload = seen.state, seen.workload(project, name)
    items: list[InstanceResult] = []
    scan, room = ScanLimit(), RESULTS_PAGE_BYTES
    last = state.placed_count(workload) - 1
    for index in range(after + 1, last + 1):
        instance = state.instances.get(f"{workload.key}.{index}")
        result = instance_result(instance) if instance is not None else None
        if result is not None:
            items.append(result)
            room -= result.size
        if (scan.is_over() or len(items) == limit or room <= 0) and index < last:
            return seen.shows(ResultPage(state.revision, items, index))
    return seen.shows(ResultPage(state.revision, items))


async def post_result(call: Call, project: str, name: str, index: int, body: ResultBody) -> InstanceView:
    """Post the result of an attempt that runs: JSON, an exit code, or both.

    With `code` the attempt with this token ends as if its agent had reported that, and its processes are stopped.
    With `data` alone it goes on. At its end, the file ROOST_RESULT replaces what was posted, if there is one.
    """
    engine = call.engine
    result = _posted(body)
    workload = await call.workload(project, name)
    instance_detail(engine.state, workload, index)  # whether there is such an instance
    known = engine.state.instances.get(f"{workload.key}.{index}")
    last = instance_view(known) if known is not None else None
    message = body.message if body.message.isprintable() else ascii(body.message)[1:-1]
    await call.ask(lambda number: ResultPosted(number, workload.key, index, body.token, body.code, message, result))
    after = engine.state.instances.get(f"{workload.key}.{index}")
    if after is not None:
        return without_data(instance_view(after, call.redactor.visible))
    assert last is not None
    ending = "failed" if body.code else "succeeded"
    return msgspec.structs.replace(without_data(last), state=ending, exit_code=body.code)


def _posted(body: ResultBody) -> Result | None:
    if body.data is msgspec.UNSET:
        if body.code is None:
            raise Invalid("code", "post `code`, `data` or both")
        return None
    result = result_of(msgspec.json.encode(body.data))
    if result.problem is not None:
        raise Invalid("data", message_of(not_kept(result)))
    return result


def without_data(view: InstanceView) -> InstanceView:
    """An answer that may go through another server, which cannot take JSON as it is."""
    if view.result is None:
        return view
    return msgspec.structs.replace(view, result=msgspec.structs.replace(view.result, data=msgspec.UNSET))
