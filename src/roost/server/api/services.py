"""Services: where they are. The addresses of their instances, for whoever wants to reach them."""

from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import FromPath, FromQuery, QueryParameter

from roost.core.addresses import addresses_of
from roost.core.state import State
from roost.model.errors import Conflict, NotFound
from roost.model.workload import Workload
from roost.server.api.doors import doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.api.workloads import SCAN_MAX, older_than
from roost.server.views import live_view

PAGE_MAX = 100  # services with up to a hundred addresses each: some ten milliseconds

Ready = Annotated[bool, QueryParameter(description="Only addresses that are ready to be used.")]


class AddressView(msgspec.Struct, frozen=True, kw_only=True):
    """Where an instance listens: its node's address, and its ports by name. `ready`: as its health check says."""

    index: int
    node: str
    host: str
    ports: dict[str, int]
    ready: bool
    version: int


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """A service: how many of its replicas are ready or keep ending, and where the first hundred that run are.

    `rollout`: how the change to its version goes: rolling, waiting, done or failed; nothing: there was none.
    """

    project: str
    name: str
    count: int
    ready: int
    looping: int
    version: int
    rollout: str | None
    ports: list[str]
    addresses: list[AddressView]


class ServicePage(msgspec.Struct, frozen=True):
    """Services, newest first. There are more as long as `next` is given (for `after`); a page may be short."""

    revision: int
    items: list[ServiceView]
    next: str | None = None


@get("/v1/services", operation_id="list_services", responses=refusals(403, 422, 503))
async def list_services(
    request: Request[Any, Any, Any],
    project: FromQuery[str] = "",
    ready: Ready = False,
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")] = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> ServicePage:
    """List the services that live and where they are, newest first."""
    state, veil = await doors_of(request).engine.settled(), veil_of(request)
    items: list[ServiceView] = []
    for seen, workload in enumerate(older_than(state, after, veil), start=1):
        is_seen = veil.sees(workload.project)
        is_asked_for = workload.policy.kind == "service" and (not project or workload.project == project)
        if is_seen and is_asked_for and not workload.finished_ms:
            items.append(service_view(state, workload, only_ready=ready))
        if len(items) == limit or seen == SCAN_MAX:
            return ServicePage(state.revision, items, f"{workload.serial}:{workload.key if is_seen else ''}")
    return ServicePage(state.revision, items)


@get("/v1/services/{project:str}/{name:str}", operation_id="get_service", responses=refusals(403, 404, 409, 422, 503))
async def get_service(
    request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str], ready: Ready = False
) -> ServiceView:
    """Look at where a service is."""
    state = await doors_of(request).engine.settled()
    workload = state.workloads.get(f"{project}/{name}")
    if workload is None:
        raise NotFound(f"there is no service {project}/{name}")
    if workload.policy.kind != "service":
        raise Conflict(f"{project}/{name} is a {workload.policy.kind}, and has no addresses", code="no_service")
    return service_view(state, workload, only_ready=ready)


def service_view(state: State, workload: Workload, *, only_ready: bool) -> ServiceView:
    """A service and where it is."""
    known = addresses_of(state, workload)
    told = [each for each in known if each.ready or not only_ready]
    view = live_view(state, workload)
    return ServiceView(
        project=workload.project,
        name=workload.name,
        count=workload.count,
        ready=view.ready or 0,
        looping=view.looping or 0,
        version=workload.version,
        rollout=workload.rollout.state if workload.rollout is not None else None,
        ports=list(workload.policy.ports),
        addresses=[
            AddressView(
                index=each.index,
                node=each.node,
                host=each.host,
                ports=each.ports,
                ready=each.ready,
                version=state.instances[f"{workload.key}.{each.index}"].version,
            )
            for each in told
        ],
    )
