"""Members: which persons have which role in a project, or everywhere (project `*`)."""

from heapq import nsmallest
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, put
from litestar.params import FromPath, QueryParameter

from roost.model.access import Member, check_place, check_role, subject_of
from roost.model.errors import NotFound
from roost.model.events import Keep
from roost.model.kept import Kept
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of
from roost.server.auth_members import decode_member, encode_member

PAGE_MAX = 1_000

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A person in a project, and who has given it the role."""

    project: str
    subject: str
    role: str
    set_ms: int
    set_by: str


class MemberPage(msgspec.Struct, frozen=True):
    """Members by subject. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[MemberView]
    next: str | None = None


class Membership(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The role of a person: viewer, submitter, operator or admin."""

    role: str


@get("/v1/projects/{project:str}/members", operation_id="list_members", responses=refusals(403, 404, 422, 503))
async def list_members(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    limit: PageLimit = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> MemberPage:
    """List the persons with a role in a project. Those with a role everywhere are members of `*`."""
    state = await doors_of(request).engine.settled()
    kept, start = state.kept.get("member", {}), f"{project}/"
    keys = nsmallest(limit + 1, (key for key in kept if key.startswith(start) and key > start + after))
    items = [_view(key, kept[key]) for key in keys[:limit]]
    return MemberPage(state.revision, items, items[-1].subject if len(keys) > limit else None)


@put(
    "/v1/projects/{project:str}/members/{subject:str}",
    operation_id="set_member",
    operation_class=taking(Membership),
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def set_member(request: Request[Any, Any, Any], project: FromPath[str], subject: FromPath[str]) -> MemberView:
    """Give a person a role in a project; it takes the place of the one it had."""
    role = (await read_fields(request, Membership, required=True)).role
    check_place(project, "project")
    check_role(role, "role")
    key = f"{project}/{subject_of(subject, 'subject')}"
    value = encode_member(Member(role, doors_of(request).engine.clock.now_ms(), principal_of(request).name))
    await ask(request, lambda number: Keep(number, (Kept("member", key, value),)))
    return _view(key, value)


@delete(
    "/v1/projects/{project:str}/members/{subject:str}",
    operation_id="remove_member",
    status_code=204,
    responses=refusals(403, 404, 422, 503),
)
async def remove_member(request: Request[Any, Any, Any], project: FromPath[str], subject: FromPath[str]) -> None:
    """Take a person's role in a project away, at once."""
    state = await doors_of(request).engine.settled()
    key = f"{project}/{subject_of(subject, 'subject')}"
    if key not in state.kept.get("member", {}):
        raise NotFound(f"{subject:.100} is no member of {project:.100}")
    await ask(request, lambda number: Keep(number, (Kept("member", key, None),)))


def _view(key: str, value: bytes) -> MemberView:
    project, _, subject = key.partition("/")
    member = decode_member(value)
    return MemberView(project=project, subject=subject, role=member.role, set_ms=member.set_ms, set_by=member.set_by)
