"""Maintenance: everything is held where it is, until it ends."""

from typing import Any

import msgspec
from litestar import Request, delete, get, put

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.events import Maintain
from roost.model.names import check_text
from roost.model.placement import between
from roost.model.units import duration_ms
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of
from roost.server.api.errors import refusals
from roost.server.setting_views import MaintenanceView, maintenance_view


class Maintaining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why, and for how long, like `2h`; nothing: until somebody ends it."""

    reason: str
    for_: int | float | str | None = msgspec.field(default=None, name="for")


@get("/v1/maintenance", operation_id="get_maintenance", responses=refusals(403, 503))
async def get_maintenance(request: Request[Any, Any, Any]) -> MaintenanceView:
    """Say whether there is maintenance, since when and why."""
    return maintenance_view(await doors_of(request).engine.settled())


@put(
    "/v1/maintenance",
    operation_id="begin_maintenance",
    operation_class=taking(Maintaining),
    responses=refusals(403, 413, 415, 422, 503),
)
async def begin_maintenance(request: Request[Any, Any, Any]) -> MaintenanceView:
    """Hold everything where it is: nothing is placed, moved, updated or given up. What runs and ends is heard of.

    While there is maintenance already, this changes its reason and its end.
    """
    fields = await read_fields(request, Maintaining, required=True)
    check_text(fields.reason, "reason")
    if not fields.reason.strip():
        raise Invalid("reason", "say what for: whoever waits is told")
    for_ms = 0
    if fields.for_ is not None:
        for_ms = duration_ms(fields.for_, "for")
        between(for_ms, 1, limits.DURATION_MS_MAX, "for", "milliseconds")
    engine = doors_of(request).engine
    await ask(request, lambda number: Maintain(number, True, fields.reason, for_ms))
    return maintenance_view(engine.state)


@delete("/v1/maintenance", operation_id="end_maintenance", status_code=200, responses=refusals(403, 503))
async def end_maintenance(request: Request[Any, Any, Any]) -> MaintenanceView:
    """End maintenance: all that was held up takes its course. To end what is not there is fine."""
    engine = doors_of(request).engine
    await ask(request, lambda number: Maintain(number, False))
    return maintenance_view(engine.state)
