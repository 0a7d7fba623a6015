"""Tokens: how programs come in. Created, rotated and revoked by admins, each for the projects it is admin of."""

from heapq import nsmallest

import msgspec

from roost.model import limits
from roost.model.errors import Conflict, Forbidden, Invalid, NotFound
from roost.model.events import PutRecords
from roost.model.records.access import ADMIN, EVERYWHERE, Token, check_projects, check_role
from roost.model.records.opaque import OpaqueRecord
from roost.model.spec.names import check_name
from roost.model.spec.units import duration_ms
from roost.schema.access import Creating, Duration, Rotating, TokenMade, TokenPage, TokenView
from roost.server.auth.principal import Principal
from roost.server.auth.tokens import CachedToken, Tokens, encode_token, make_secret
from roost.server.operations.context import Call
from roost.server.operations.named_projects import permit_in
from roost.server.operations.parameters import PAGE_MAX, After, Limit

NEVER = "never"
TRIES_MAX = 3  # a use may be written down between looking and changing, and that once an hour


async def list_tokens(call: Call, limit: Limit = PAGE_MAX, after: After = "") -> TokenPage:
    """List tokens by name, never their secrets."""
    context, principal = call.context, call.principal
    state = await context.engine.settled()
    tokens, now = context.auth.tokens, context.engine.clock.now_ms()
    names = (name for name in state.opaque_records.get("token", {}) if name > after and _find(tokens, principal, name))
    found = nsmallest(limit + 1, names)
    items = [_view(tokens, name, _there(tokens, principal, name).token, now) for name in found[:limit]]
    return TokenPage(state.revision, items, found[limit - 1] if len(found) > limit else None)


async def get_token(call: Call, token: str) -> TokenView:
    """Show a token: its role, its projects, its expiry, its last use."""
    context = call.context
    await context.engine.settled()
    known = _there(context.auth.tokens, call.principal, token)
    return _view(context.auth.tokens, token, known.token, context.engine.clock.now_ms())


async def create_token(call: Call, fields: Creating) -> TokenMade:
    """Create a token. Its secret is in this answer and nowhere else."""
    principal, projects = call.principal, tuple(fields.projects)
    check_name(fields.name, "name")
    check_role(fields.role, "role")
    check_projects(projects, "projects")
    # An admin of some projects gives away what it has, and no more: the role of an admin is the highest.
    permit_in(principal, projects, ADMIN)
    lifetime = _lifetime(fields.expires, limits.DEFAULT_TOKEN_LIFETIME_MS, principal)
    text, digest = make_secret(fields.name)
    now = call.engine.clock.now_ms()
    made = Token(fields.role, projects, digest, now, principal.name, lifetime)
    record = OpaqueRecord("token", fields.name, encode_token(made), was=None)
    await call.ask(lambda number: PutRecords(number, (record,)))
    return _made(call.context.auth.tokens, fields.name, made, now, text)


async def rotate_token(call: Call, token: str, fields: Rotating) -> TokenMade:
    """Create a new secret for a token. The old one stays valid for the overlap."""
    context, principal = call.context, call.principal
    overlap = _duration(fields.overlap, limits.DEFAULT_TOKEN_OVERLAP_MS, limits.TOKEN_OVERLAP_MS_MAX, "overlap")
    text, digest = make_secret(token)
    for attempt in range(TRIES_MAX):
        await context.engine.settled()
        known = _there(context.auth.tokens, principal, token)
        lifetime = _lifetime(fields.expires, known.token.lifetime_ms, principal)
        now = context.engine.clock.now_ms()
        made = _rotated(known.token, digest, now, overlap, lifetime)
        record = OpaqueRecord("token", token, encode_token(made), was=known.stored)
        try:
            await call.ask(lambda number, record=record: PutRecords(number, (record,)))  # type: ignore[misc]
            break
        except Conflict as error:
            if error.code != "changed" or attempt == TRIES_MAX - 1:
                raise
    return _made(context.auth.tokens, token, made, now, text)


async def revoke_token(call: Call, token: str) -> None:
    """Revoke a token at once. Streams that it opened end."""
    context = call.context
    await context.engine.settled()
    _there(context.auth.tokens, call.principal, token)
    await call.ask(lambda number: PutRecords(number, (OpaqueRecord("token", token, None),)))


def _there(tokens: Tokens, principal: Principal, name: str) -> CachedToken:
    known = _find(tokens, principal, name)
    if known is None:
        raise NotFound(f"there is no token {name:.100}, or it is none of yours", params={"token": name})
    return known


def _find(tokens: Tokens, principal: Principal, name: str) -> CachedToken | None:
    """A token whose projects are all the principal's to administrate."""
    known = tokens.find(name)
    return known if known is not None and principal.access.covers(known.token.projects, ADMIN) else None


def _rotated(old: Token, digest: bytes, now: int, overlap: int, lifetime: int) -> Token:
    until = now + overlap
    if old.expires_ms:
        until = min(until, old.expires_ms)  # the old secret ends when it would have ended
    return msgspec.structs.replace(
        old, digest=digest, rotated_ms=now, lifetime_ms=lifetime, old_digest=old.digest, old_until_ms=until
    )


def _lifetime(expires: Duration, otherwise: int, principal: Principal) -> int:
    """How long a secret is good, in milliseconds; 0: it does not expire."""
    never = expires == NEVER or (expires is None and not otherwise)
    if never and principal.access.everywhere < ADMIN:
        message = f"only an admin of everything ({EVERYWHERE}) may have tokens that never expire; say for how long"
        raise Forbidden(message, path="expires")
    if never:
        return 0
    lifetime = _duration(expires, otherwise, limits.TOKEN_LIFETIME_MS_MAX, "expires")
    if not lifetime:
        raise Invalid("expires", f"a token lasts for a while, such as 30d, or `{NEVER}` expires")
    return lifetime


def _duration(given: Duration, otherwise: int, most: int, path: str) -> int:
    if given is None:
        return otherwise
    length = duration_ms(given, path)
    if length > most:
        raise Invalid(path, f"this may be {most // 86_400_000} days at most")
    return length


def _made(tokens: Tokens, name: str, made: Token, now: int, text: str) -> TokenMade:
    return TokenMade(**msgspec.structs.asdict(_view(tokens, name, made, now)), token=text)


def _view(tokens: Tokens, name: str, token: Token, now: int) -> TokenView:
    return TokenView(
        name=name,
        role=token.role,
        projects=list(token.projects),
        created_ms=token.created_ms,
        created_by=token.created_by,
        expires_ms=token.expires_ms or None,
        expired=bool(token.expires_ms) and now >= token.expires_ms,
        rotated_ms=token.rotated_ms or None,
        overlap_until_ms=token.old_until_ms if token.old_until_ms > now else None,
        used_ms=tokens.used_ms(name, token) or None,
    )
