"""Reservations: nodes set aside for one project, from a moment to a moment."""

from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.params import FromPath, QueryParameter

from roost.model import limits
from roost.model.errors import Invalid, NotFound
from roost.model.events import Reserve, Unset
from roost.model.names import check_name, check_node_name
from roost.model.placement import between
from roost.model.project import Reservation
from roost.model.units import moment_ms
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of
from roost.server.setting_views import ReservationView, reservation_view

PAGE_MAX = 1_000
NAMES_MAX = 20_000  # names of nodes on one page: some hundred kilobytes

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class ReservationPage(msgspec.Struct, frozen=True):
    """Reservations by name. There are more as long as `next` is given (for `after`); a page may be short."""

    revision: int
    items: list[ReservationView]
    next: str | None = None


class Reserving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes for a project: by their names, or a count of them and perhaps a pool to choose them from.

    `start` and `end` are moments with a time zone (`2030-01-31T18:00Z`) or durations from now (`2h`). Without `start`
    it begins at once; without `end` it lasts until it is cancelled.
    """

    name: str
    project: str
    nodes: list[str] = []
    count: int | None = None
    pool: str = ""
    start: int | float | str | None = None
    end: int | float | str | None = None


@get("/v1/reservations", operation_id="list_reservations", responses=refusals(403, 422, 503))
async def list_reservations(
    request: Request[Any, Any, Any],
    limit: PageLimit = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> ReservationPage:
    """List reservations by name, those that begin later included. One that is over is forgotten."""
    engine = doors_of(request).engine
    state = await engine.settled()
    items: list[ReservationView] = []
    shown, access = 0, principal_of(request).access
    for name in sorted(each for each in state.reservations if each > after):
        reservation = state.reservations[name]
        if not access.sees(reservation.project):
            continue
        shown += len(reservation.nodes)
        if len(items) == limit or (items and shown > NAMES_MAX):
            return ReservationPage(state.revision, items, items[-1].name)
        items.append(reservation_view(reservation, engine.clock.now_ms()))
    return ReservationPage(state.revision, items)


@get("/v1/reservations/{reservation:str}", operation_id="get_reservation", responses=refusals(403, 404, 503))
async def get_reservation(request: Request[Any, Any, Any], reservation: FromPath[str]) -> ReservationView:
    """Look at a reservation: for whom, which nodes, when."""
    engine = doors_of(request).engine
    found = (await engine.settled()).reservations.get(reservation)
    if found is None or not principal_of(request).access.sees(found.project):
        raise NotFound(f"there is no reservation {reservation:.100}")
    return reservation_view(found, engine.clock.now_ms())


@post(
    "/v1/reservations",
    operation_id="reserve",
    operation_class=taking(Reserving),
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def reserve(request: Request[Any, Any, Any]) -> ReservationView:
    """Reserve nodes for a project. When it begins, what others run there is moved."""
    fields = await read_fields(request, Reserving, required=True)
    engine = doors_of(request).engine
    now = engine.clock.now_ms()
    _check(fields)
    start = now if fields.start is None else moment_ms(fields.start, "start", now)
    end = 0 if fields.end is None else moment_ms(fields.end, "end", now)
    if fields.end is not None and end <= max(now, start):
        raise Invalid("end", "it would be over before it begins")
    wanted = Reservation(fields.name, fields.project, tuple(fields.nodes), start, end)
    await ask(request, lambda number: Reserve(number, wanted, fields.count or 0, fields.pool))
    return reservation_view(engine.state.reservations[fields.name], engine.clock.now_ms())


@delete(
    "/v1/reservations/{reservation:str}", operation_id="cancel_reservation", status_code=204,
    responses=refusals(403, 404, 503),
)  # fmt: skip
async def cancel_reservation(request: Request[Any, Any, Any], reservation: FromPath[str]) -> None:
    """Give the nodes of a reservation back to everybody, before or after it has begun."""
    await ask(request, lambda number: Unset(number, "reservation", reservation))


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
