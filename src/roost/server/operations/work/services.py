"""Services: where they are. The addresses of their instances, for their clients."""

from roost.core.orders import addresses_of
from roost.core.state.state import State
from roost.model.errors import Conflict, NotFound
from roost.model.records.workload import Workload
from roost.model.states import WorkloadKind
from roost.schema.services import AddressView, ServicePage, ServiceView
from roost.server.operations.context import Call
from roost.server.operations.parameters import DETAILS_MAX, After, DetailLimit, Ready
from roost.server.operations.work.workloads import older_than
from roost.server.views.view_of import view_of
from roost.server.views.work import live_view
from roost.server.waiting import ScanLimit


async def list_services(
    call: Call, project: str = "", ready: Ready = False, limit: DetailLimit = DETAILS_MAX, after: After = ""
) -> ServicePage:
    """List live services and their addresses, newest first."""
    state, redactor = await call.state(), call.redactor
    items: list[ServiceView] = []
    scan = ScanLimit()
    for workload in older_than(state, after, redactor):
        is_seen = redactor.sees(workload.project)
        is_asked_for = workload.policy.kind == WorkloadKind.SERVICE and (not project or workload.project == project)
        if is_seen and is_asked_for and not workload.finished_ms:
            items.append(service_view(state, workload, only_ready=ready))
        if scan.is_over() or len(items) == limit:
            return ServicePage(state.revision, items, f"{workload.serial}:{workload.key if is_seen else ''}")
    return ServicePage(state.revision, items)


async def get_service(call: Call, project: str, name: str, ready: Ready = False) -> ServiceView:
    """Show the addresses of a service."""
    state = await call.state()
    workload = state.workloads.get(f"{project}/{name}")
    if workload is None:
        raise NotFound(f"there is no service {project}/{name}", params={"service": f"{project}/{name}"})
    if workload.policy.kind != WorkloadKind.SERVICE:
        raise Conflict(f"{project}/{name} is a {workload.policy.kind}, and has no addresses", code="no_service")
    return service_view(state, workload, only_ready=ready)


def service_view(state: State, workload: Workload, *, only_ready: bool) -> ServiceView:
    view = live_view(state, workload)
    return view_of(
        ServiceView,
        view,
        workload.policy,
        ready=view.ready or 0,
        looping=view.looping or 0,
        rollout=workload.rollout.state if workload.rollout is not None else None,
        addresses=[
            view_of(AddressView, address, state.instances[f"{workload.key}.{address.index}"])
            for address in addresses_of(state, workload)
            if address.ready or not only_ready
        ],
    )
