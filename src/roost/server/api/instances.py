"""Instances: the runs of a workload."""

from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import FromPath, QueryParameter

from roost.model.states import InstanceState
from roost.server.api.doors import doors_of, find
from roost.server.api.errors import refusals
from roost.server.views import InstanceDetail, InstanceView, instance_detail, instances_of

PAGE_MAX = 1_000
SCAN_MAX = 20_000  # instances looked at for one page: some ten milliseconds

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class InstancePage(msgspec.Struct, frozen=True):
    """Instances by index. A page may be short: there are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[InstanceView]
    next: int | None = None


@get(
    "/v1/workloads/{project:str}/{name:str}/instances", operation_id="list_instances", responses=refusals(404, 422, 503)
)
async def list_instances(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    name: FromPath[str],
    only: Annotated[InstanceState | None, QueryParameter(name="state")] = None,
    limit: PageLimit = 100,
    after: Annotated[int, QueryParameter(ge=-1, description="`next` of the page before.")] = -1,
) -> InstancePage:
    """List the instances of a workload, those that never ran included."""
    doors = doors_of(request)
    workload = await find(doors, project, name)
    state = doors.engine.state
    stop = min(after + 1 + SCAN_MAX, workload.count)
    items: list[InstanceView] = []
    for index, view in instances_of(state, workload, after + 1, stop):
        if not only or view.state == only:
            items.append(view)
        if len(items) == limit and index + 1 < workload.count:
            return InstancePage(state.revision, items, index)
    return InstancePage(state.revision, items, stop - 1 if stop < workload.count else None)


@get(
    "/v1/workloads/{project:str}/{name:str}/instances/{index:int}",
    operation_id="get_instance",
    responses=refusals(404, 503),
)
async def get_instance(
    request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str], index: FromPath[int]
) -> InstanceDetail:
    """Look at an instance: its story, and the decision that placed it."""
    doors = doors_of(request)
    workload = await find(doors, project, name)
    return instance_detail(doors.engine.state, workload, index)
