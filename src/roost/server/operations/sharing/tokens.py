"""Tokens: how programs come in. Created, rotated and revoked by admins, each for the projects it is admin of."""

import msgspec

from roost.model import limits
from roost.model.errors import Conflict, Forbidden, Invalid, NotFound
from roost.model.records.access import ADMIN, EVERYWHERE, Token, check_projects, check_role
from roost.model.records.opaque import OpaqueRecord
from roost.model.spec.names import check_name
from roost.model.spec.units import duration_ms
from roost.schema.access.roles import Creating, Duration, Rotating, TokenMade, TokenPage, TokenView
from roost.server.auth.principal import Principal
from roost.server.auth.tokens import CachedToken, encode_token, make_secret
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of
from roost.server.operations.permit import permit_in
from roost.server.views.view_of import view_of

NEVER = "never"
TRIES_MAX = 3  # a use may be written down between looking and changing, and that once an hour


async def list_tokens(call: Call, limit: Limit = PAGE_MAX, after: After = "") -> TokenPage:
    """List tokens by name, never their secrets."""
    kept = await call.records("token")
    names, following = page_of((name for name in kept if name > after and _find(call, name)), limit, after)
    items = [_view(call, name, _there(call, name).token) for name in names]
    return TokenPage(call.engine.state.revision, items, following)


async def get_token(call: Call, token: str) -> TokenView:
    """Show a token: its role, its projects, its expiry, its last use."""
    await call.state()
    return _view(call, token, _there(call, token).token)


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
    made = Token(fields.role, projects, digest, call.now_ms, principal.name, lifetime)
    detail = f"role {fields.role} in {', '.join(projects)}"
    await call.put(OpaqueRecord("token", fields.name, encode_token(made), was=None), detail=detail)
    return view_of(TokenMade, _view(call, fields.name, made), token=text)


async def rotate_token(call: Call, token: str, fields: Rotating) -> TokenMade:
    """Create a new secret for a token. The old one stays valid for the overlap."""
    overlap = _duration(fields.overlap, limits.DEFAULT_TOKEN_OVERLAP_MS, limits.TOKEN_OVERLAP_MS_MAX, "overlap")
    text, digest = make_secret(token)
    for attempt in range(TRIES_MAX):
        await call.state()
        known = _there(call, token)
        lifetime = _lifetime(fields.expires, known.token.lifetime_ms, call.principal)
        old, now = known.token, call.now_ms
        until = min(now + overlap, old.expires_ms) if old.expires_ms else now + overlap  # its own expiry stays
        made = msgspec.structs.replace(
            old, digest=digest, rotated_ms=now, lifetime_ms=lifetime, old_digest=old.digest, old_until_ms=until
        )
        try:
            record = OpaqueRecord("token", token, encode_token(made), was=known.stored)
            await call.put(record, detail="a new secret")
            break
        except Conflict as error:
            if error.code != "changed" or attempt == TRIES_MAX - 1:
                raise
    return view_of(TokenMade, _view(call, token, made), token=text)


async def revoke_token(call: Call, token: str) -> None:
    """Revoke a token at once. Streams that it opened end."""
    await call.state()
    gone = _there(call, token).token
    await call.put(OpaqueRecord("token", token, None), detail=f"had role {gone.role} in {', '.join(gone.projects)}")


def _there(call: Call, name: str) -> CachedToken:
    known = _find(call, name)
    if known is None:
        raise NotFound(f"there is no token {name:.100}, or it is none of yours", params={"token": name})
    return known


def _find(call: Call, name: str) -> CachedToken | None:
    """A token, if its caller is an admin of all its projects."""
    known = call.context.auth.tokens.find(name)
    return known if known is not None and call.principal.access.covers(known.token.projects, ADMIN) else None


def _lifetime(expires: Duration, otherwise: int, principal: Principal) -> int:
    """In milliseconds; 0: it does not expire."""
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


def _view(call: Call, name: str, token: Token) -> TokenView:
    now = call.now_ms
    return view_of(
        TokenView,
        token,
        name=name,
        expired=bool(token.expires_ms) and now >= token.expires_ms,
        overlap_until_ms=token.old_until_ms if token.old_until_ms > now else None,
        used_ms=call.context.auth.tokens.used_ms(name, token) or None,
    )
