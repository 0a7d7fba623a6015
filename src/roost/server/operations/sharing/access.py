"""Access: the principal of a caller, members of projects (`*`: everywhere), and the audit log."""

from typing import Annotated

import msgspec
from msgspec import Meta

from roost.model.errors import NotFound
from roost.model.records.access import Member, check_place, check_role, subject_of
from roost.model.records.opaque import Audit, OpaqueRecord
from roost.schema.access.roles import AuditPage, LoginView, MemberPage, Membership, MemberView, WhoamiView
from roost.server.auth.tokens import decode_member, encode_member
from roost.server.history.search import search_audits
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of
from roost.server.views.view_of import view_of


async def whoami(call: Call) -> WhoamiView:
    """Show your principal and your roles."""
    who = call.principal
    return view_of(WhoamiView, who, roles=dict(sorted(who.access.roles().items())))


async def login(call: Call) -> LoginView:
    """The OpenID issuer. It needs no token."""
    issuer = call.context.auth.issuer
    if issuer is None:
        raise NotFound("this server knows no issuer of identities; ask an admin for a token")
    return LoginView(issuer=issuer.url, client_id=issuer.client_id)


async def list_members(call: Call, project: str, limit: Limit = PAGE_MAX, after: After = "") -> MemberPage:
    """List the users with a role in a project. Project `*`: roles in all projects."""
    kept = await call.records("member")
    keys, following = page_of(kept, limit, after, f"{project}/")
    return MemberPage(call.engine.state.revision, [_view(key, kept[key]) for key in keys], following)


async def set_member(call: Call, project: str, subject: str, fields: Membership) -> MemberView:
    """Give a user a role in a project; it replaces the old one."""
    check_place(project, "project")
    check_role(fields.role, "role")
    key = f"{project}/{subject_of(subject, 'subject')}"
    value = encode_member(Member(fields.role, call.now_ms, call.principal.name))
    old = (await call.records("member")).get(key)
    before = f", before {decode_member(old).role}" if old is not None else ""
    await call.put(OpaqueRecord("member", key, value), detail=f"role {fields.role}{before}")
    return _view(key, value)


async def remove_member(call: Call, project: str, subject: str) -> None:
    """Remove the role of a user in a project, at once."""
    key = f"{project}/{subject_of(subject, 'subject')}"
    old = (await call.records("member")).get(key)
    if old is None:
        raise NotFound(f"{subject:.100} is no member of {project:.100}")
    await call.put(OpaqueRecord("member", key, None), detail=f"had role {decode_member(old).role}")


def _view(key: str, value: bytes) -> MemberView:
    project, _, subject = key.partition("/")
    return view_of(MemberView, decode_member(value), project=project, subject=subject)


NUMBER_MAX = 1 << 53  # exact in JSON


async def audit(
    call: Call,
    who: Annotated[str, Meta(description="root, token:NAME or user:SUBJECT; or only NAME or SUBJECT.")] = "",
    what: Annotated[str, Meta(description="The kind of the change, such as `submit` or `drain`.")] = "",
    limit: Limit = 100,
    after: Annotated[int, Meta(ge=0, le=NUMBER_MAX, description="`next` of the previous page.")] = 0,
) -> AuditPage:
    """List changes on request, newest first; also refused requests and backups, if a history is kept."""
    if call.context.history is not None:
        state = await call.state()
        await call.context.history.catch_up(state.revision)
        return AuditPage(state.revision, *await call.context.history.read(search_audits, who, what, limit, after))
    entries = map(_DECODER.decode, (await call.records("audit")).values())
    found = [
        entry
        for entry in entries
        if (not after or entry.number < after)
        and (not what or entry.what == what)
        and (not who or who in (entry.who, entry.who.partition(":")[2]))
    ]
    found.sort(key=lambda entry: -entry.number)
    items = found[:limit]
    return AuditPage(call.engine.state.revision, items, items[-1].number if len(found) > limit else None)


_DECODER = msgspec.msgpack.Decoder(Audit)
