"""Reservations: nodes set aside for one project, from a moment to a moment."""

from roost.model import limits
from roost.model.errors import Invalid, NotFound
from roost.model.events import Reserve, Unset
from roost.model.records.project import Reservation
from roost.model.spec.names import check_name, check_node_name
from roost.model.spec.placement import between
from roost.model.spec.units import moment_ms
from roost.schema.projects import ReservationPage, ReservationView, Reserving
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit
from roost.server.views.operators import reservation_view

NAMES_MAX = 20_000  # names of nodes on one page: some hundred kilobytes


async def list_reservations(call: Call, limit: Limit = PAGE_MAX, after: After = "") -> ReservationPage:
    """List current and future reservations by name."""
    state = await call.state()
    items: list[ReservationView] = []
    shown = 0
    for name in sorted(reservation for reservation in state.reservations if reservation > after):
        reservation = state.reservations[name]
        if not call.redactor.sees(reservation.project):
            continue
        shown += len(reservation.nodes)
        if len(items) == limit or (items and shown > NAMES_MAX):
            return ReservationPage(state.revision, items, items[-1].name)
        items.append(reservation_view(reservation, call.now_ms))
    return ReservationPage(state.revision, items)


async def get_reservation(call: Call, reservation: str) -> ReservationView:
    """Show a reservation: project, nodes, times."""
    found = (await call.state()).reservations.get(reservation)
    if found is None or not call.principal.access.sees(found.project):
        raise NotFound(f"there is no reservation {reservation:.100}", params={"reservation": reservation})
    return reservation_view(found, call.now_ms)


async def reserve(call: Call, fields: Reserving) -> ReservationView:
    """Reserve nodes for a project. At its start, work of other projects moves away."""
    now = call.now_ms
    _check(fields)
    start = now if fields.start is None else moment_ms(fields.start, "start", now)
    end = 0 if fields.end is None else moment_ms(fields.end, "end", now)
    if fields.end is not None and end <= max(now, start):
        raise Invalid("end", "it would be over before it begins")
    wanted = Reservation(fields.name, fields.project, tuple(fields.nodes), start, end)
    await call.ask(lambda number: Reserve(number, wanted, fields.count or 0, fields.pool))
    return reservation_view(call.engine.state.reservations[fields.name], call.now_ms)


async def cancel_reservation(call: Call, reservation: str) -> None:
    """Cancel a reservation, before or after its start."""
    await call.ask(lambda number: Unset(number, "reservation", reservation))


def _check(fields: Reserving) -> None:
    check_name(fields.name, "name")
    check_name(fields.project, "project")
    if bool(fields.nodes) == (fields.count is not None):
        raise Invalid("nodes", "say either which nodes (nodes) or how many (count)")
    if fields.pool and fields.nodes:
        raise Invalid("pool", "a pool is for choosing nodes from; these are chosen already")
    if fields.pool:
        check_name(fields.pool, "pool")
    if fields.count is not None:
        between(fields.count, 1, limits.RESERVED_NODES_MAX, "count", "nodes")
    between(len(fields.nodes), 0, limits.RESERVED_NODES_MAX, "nodes", "nodes")
    seen: set[str] = set()
    for index, node in enumerate(fields.nodes):
        check_node_name(node, f"nodes[{index}]")
        if node in seen:
            raise Invalid(f"nodes[{index}]", f"{node} is there twice")
        seen.add(node)
