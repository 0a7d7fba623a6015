"""Instances: the runs of a workload, and results that are known outside of agents."""

import msgspec

from roost.model.events import ResultPosted
from roost.model.states import InstanceState
from roost.schema.work import InstanceDetail, InstancePage, InstanceView, ResultBody
from roost.server.operations.context import AsOf, Call, state_at
from roost.server.operations.parameters import AfterIndex, At, Limit
from roost.server.views.work import instance_detail, instance_view, instances_of
from roost.server.waiting import ScanLimit


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


async def post_result(call: Call, project: str, name: str, index: int, body: ResultBody) -> InstanceView:
    """End the attempt with this token as if its agent had reported this exit code. Its processes are stopped."""
    engine = call.engine
    workload = await call.workload(project, name)
    instance_detail(engine.state, workload, index)  # whether there is such an instance
    known = engine.state.instances.get(f"{workload.key}.{index}")
    last = instance_view(known) if known is not None else None
    message = body.message if body.message.isprintable() else ascii(body.message)[1:-1]
    await call.ask(lambda number: ResultPosted(number, workload.key, index, body.token, body.code, message))
    after = engine.state.instances.get(f"{workload.key}.{index}")
    if after is not None:
        return instance_view(after, call.redactor.visible)
    assert last is not None
    return msgspec.structs.replace(last, state="failed" if body.code else "succeeded", exit_code=body.code)
