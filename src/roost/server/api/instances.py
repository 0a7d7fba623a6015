"""Instances: the runs of a workload."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.params import FromPath, QueryParameter

from roost.core.state import State
from roost.model.states import InstanceState
from roost.model.workload import Workload
from roost.server.api.at import AT_HEADERS, At, look
from roost.server.api.doors import veil_of
from roost.server.api.errors import refusals
from roost.server.auth_veil import Veil
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
    "/v1/workloads/{project:str}/{name:str}/instances",
    operation_id="list_instances",
    responses=refusals(403, 404, 422, 503),
    response_headers=AT_HEADERS,
)
async def list_instances(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    name: FromPath[str],
    only: Annotated[InstanceState | None, QueryParameter(name="state")] = None,
    limit: PageLimit = 100,
    after: Annotated[int, QueryParameter(ge=-1, description="`next` of the page before.")] = -1,
    at: At = "",
) -> Response[InstancePage]:
    """List the instances of a workload, those that never ran included."""
    seen = await look(request, at)
    workload, veil = seen.workload(project, name), veil_of(request)
    return seen.shows(_page(seen.state, workload, veil, only, limit, after))


def _page(
    state: State, workload: Workload, veil: Veil, only: InstanceState | None, limit: int, after: int
) -> InstancePage:
    stop = min(after + 1 + SCAN_MAX, workload.count)
    items: list[InstanceView] = []
    for index, view in instances_of(state, workload, after + 1, stop):
        if not only or view.state == only:
            items.append(veil.instance(view))
        if len(items) == limit and index + 1 < workload.count:
            return InstancePage(state.revision, items, index)
    return InstancePage(state.revision, items, stop - 1 if stop < workload.count else None)


@get(
    "/v1/workloads/{project:str}/{name:str}/instances/{index:int}",
    operation_id="get_instance",
    responses=refusals(403, 404, 422, 503),
    response_headers=AT_HEADERS,
)
async def get_instance(
    request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str], index: FromPath[int], at: At = ""
) -> Response[InstanceDetail]:
    """Look at an instance: its story, and the decision that placed it."""
    seen = await look(request, at)
    detail = instance_detail(seen.state, seen.workload(project, name), index)
    return seen.shows(veil_of(request).instance(detail))
