"""Versions: what a workload was, and the ways on and back of a change."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, QueryParameter

from roost.model.events import Promote, Rollback
from roost.server.api.at import AT_HEADERS, At, look
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import veil_of
from roost.server.api.errors import refusals
from roost.server.api.workloads import change_workload
from roost.server.version_views import VersionView, asked_for, difference, found, version_views
from roost.server.views import WorkloadView

EACH = "each"
DIFF_LENGTH_MAX = 30
VERSION_MAX = 1 << 31  # a change every second for 68 years


class VersionPage(msgspec.Struct, frozen=True):
    """Versions, the newest first. `diff`: what differs between two that were asked for, as lines."""

    revision: int
    items: list[VersionView]
    diff: list[str] = []


class Back(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version to go back to; none named: the last one that was good, and another one than now."""

    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)] | None = None


@get(
    "/v1/workloads/{project:str}/{name:str}/versions",
    operation_id="list_versions",
    responses=refusals(403, 404, 422, 503),
    response_headers=AT_HEADERS,
)
async def list_versions(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    name: FromPath[str],
    diff: Annotated[
        str,
        QueryParameter(max_length=DIFF_LENGTH_MAX, description="`A..B`: what differs between two; `each`: of each."),
    ] = "",
    at: At = "",
) -> Response[VersionPage]:
    """List the versions of a workload that are known: its documents, and what differs between them."""
    seen = await look(request, at)
    workload, veil = seen.workload(project, name), veil_of(request)
    lines: list[str] = []
    if diff and diff != EACH:
        old, new = (found(seen.state, workload, number) for number in asked_for(diff))
        lines = difference(old, new)
    items = [veil.version(each) for each in version_views(seen.state, workload, compared=diff == EACH)]
    return seen.shows(VersionPage(seen.state.revision, items, lines))


@post(
    "/v1/workloads/{project:str}/{name:str}/promote",
    operation_id="promote",
    status_code=200,
    responses=refusals(403, 404, 409, 503),
)
async def promote(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> WorkloadView:
    """Let all others follow the canaries of a change, which are available."""
    key = f"{project}/{name}"
    return await change_workload(request, key, lambda number: Promote(number, key))


@post(
    "/v1/workloads/{project:str}/{name:str}/rollback",
    operation_id="rollback",
    operation_class=taking(Back, required=False),
    status_code=200,
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def rollback(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> WorkloadView:
    """Go back to an earlier version, which becomes a new one. What still runs it stays."""
    version = (await read_fields(request, Back)).version or 0
    key = f"{project}/{name}"
    return await change_workload(request, key, lambda number: Rollback(number, key, version))
