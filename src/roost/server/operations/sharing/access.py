"""Access: the principal of a caller, members of projects (`*`: everywhere), and the audit log."""

from heapq import nsmallest
from typing import Annotated

import msgspec
from msgspec import Meta

from roost.model.errors import NotFound
from roost.model.events import PutRecords
from roost.model.records.access import Member, check_place, check_role, subject_of
from roost.model.records.opaque import Audit, OpaqueRecord
from roost.schema.access import AuditPage, LoginView, MemberPage, Membership, MemberView, WhoamiView
from roost.server.auth.members import decode_member, encode_member
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit


async def whoami(call: Call) -> WhoamiView:
    """Show your principal and your roles."""
    who = call.principal
    roles = dict(sorted(who.access.roles().items()))
    return WhoamiView(name=who.name, where=who.where, roles=roles, expires_ms=who.expires_ms or None)


async def login(call: Call) -> LoginView:
    """The OpenID issuer. It needs no token."""
    issuer = call.context.auth.issuer
    if issuer is None:
        raise NotFound("this server knows no issuer of identities; ask an admin for a token")
    return LoginView(issuer=issuer.url, client_id=issuer.client_id)


async def list_members(call: Call, project: str, limit: Limit = PAGE_MAX, after: After = "") -> MemberPage:
    """List the users with a role in a project. Project `*`: roles in all projects."""
    state = await call.engine.settled()
    kept, start = state.opaque_records.get("member", {}), f"{project}/"
    keys = nsmallest(limit + 1, (key for key in kept if key.startswith(start) and key > start + after))
    items = [_view(key, kept[key]) for key in keys[:limit]]
    return MemberPage(state.revision, items, items[-1].subject if len(keys) > limit else None)


async def set_member(call: Call, project: str, subject: str, fields: Membership) -> MemberView:
    """Give a user a role in a project; it replaces the old one."""
    check_place(project, "project")
    check_role(fields.role, "role")
    key = f"{project}/{subject_of(subject, 'subject')}"
    value = encode_member(Member(fields.role, call.engine.clock.now_ms(), call.principal.name))
    await call.ask(lambda number: PutRecords(number, (OpaqueRecord("member", key, value),)))
    return _view(key, value)


async def remove_member(call: Call, project: str, subject: str) -> None:
    """Remove the role of a user in a project, at once."""
    state = await call.engine.settled()
    key = f"{project}/{subject_of(subject, 'subject')}"
    if key not in state.opaque_records.get("member", {}):
        raise NotFound(f"{subject:.100} is no member of {project:.100}")
    await call.ask(lambda number: PutRecords(number, (OpaqueRecord("member", key, None),)))


def _view(key: str, value: bytes) -> MemberView:
    project, _, subject = key.partition("/")
    member = decode_member(value)
    return MemberView(project=project, subject=subject, role=member.role, set_ms=member.set_ms, set_by=member.set_by)


NUMBER_MAX = 1 << 53  # exact in JSON


async def audit(
    call: Call,
    who: Annotated[str, Meta(description="root, token:NAME or user:SUBJECT; or only NAME or SUBJECT.")] = "",
    what: Annotated[str, Meta(description="The kind of the change, such as `submit` or `drain`.")] = "",
    limit: Limit = 100,
    after: Annotated[int, Meta(ge=0, le=NUMBER_MAX, description="`next` of the previous page.")] = 0,
) -> AuditPage:
    """List changes on request, newest first."""
    state = await call.engine.settled()
    entries = map(_DECODER.decode, state.opaque_records.get("audit", {}).values())
    found = [
        entry
        for entry in entries
        if (not after or entry.number < after) and (not what or entry.what == what) and (not who or _is(entry.who, who))
    ]
    found.sort(key=lambda item: -item.number)
    items = found[:limit]
    return AuditPage(state.revision, items, items[-1].number if len(found) > limit else None)


def _is(name: str, who: str) -> bool:
    return who in (name, name.partition(":")[2])


_DECODER = msgspec.msgpack.Decoder(Audit)
