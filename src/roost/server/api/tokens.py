"""Tokens: how programs come in. Created, rotated and revoked by admins, each for the projects it is admin of."""

from heapq import nsmallest
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.params import FromPath, QueryParameter

from roost.model import limits
from roost.model.access import ADMIN, EVERYWHERE, Token, check_projects, check_role
from roost.model.errors import Conflict, Forbidden, Invalid, NotFound
from roost.model.events import Keep
from roost.model.kept import Kept
from roost.model.names import check_name
from roost.model.units import duration_ms
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import permit_in, principal_of
from roost.server.auth_principal import Principal
from roost.server.auth_tokens import Known, Tokens, encode_token, make_secret

PAGE_MAX = 1_000
NEVER = "never"
TRIES_MAX = 3  # a use may be written down between looking and changing, and that once an hour

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]
Lasting = int | float | str | None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret. Without `expires_ms` it does not end; `overlap_until_ms`: the old secret does."""

    name: str
    role: str
    projects: list[str]
    created_ms: int
    created_by: str
    expires_ms: int | None = None
    expired: bool
    rotated_ms: int | None = None
    overlap_until_ms: int | None = None
    used_ms: int | None = None


class TokenMade(TokenView, frozen=True, kw_only=True):
    """A token with its secret, which is told once and never again."""

    token: str


class TokenPage(msgspec.Struct, frozen=True):
    """Tokens by name. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[TokenView]
    next: str | None = None


class Creating(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be made: its role, and in which projects (`["*"]`: everywhere).

    `expires` is a duration such as `30d`, 90 days if nothing is said, a year at most. `never` is for admins of
    everything.
    """

    name: str
    role: str
    projects: list[str]
    expires: Lasting = None


class Rotating(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old secret stays good, such as `1h`, and how long the new one lasts: as long as the old one did."""

    overlap: Lasting = None
    expires: Lasting = None


@get("/v1/tokens", operation_id="list_tokens", responses=refusals(403, 422, 503))
async def list_tokens(
    request: Request[Any, Any, Any],
    limit: PageLimit = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> TokenPage:
    """List tokens by name, never their secrets."""
    doors, principal = doors_of(request), principal_of(request)
    state = await doors.engine.settled()
    tokens, now = doors.auth.tokens, doors.engine.clock.now_ms()
    names = (name for name in state.kept.get("token", {}) if name > after and _find(tokens, principal, name))
    found = nsmallest(limit + 1, names)
    items = [_view(tokens, name, _there(tokens, principal, name).token, now) for name in found[:limit]]
    return TokenPage(state.revision, items, found[limit - 1] if len(found) > limit else None)


@get("/v1/tokens/{token:str}", operation_id="get_token", responses=refusals(403, 404, 503))
async def get_token(request: Request[Any, Any, Any], token: FromPath[str]) -> TokenView:
    """Look at a token: its role, its projects, when it ends, when it was used."""
    doors = doors_of(request)
    await doors.engine.settled()
    known = _there(doors.auth.tokens, principal_of(request), token)
    return _view(doors.auth.tokens, token, known.token, doors.engine.clock.now_ms())


@post(
    "/v1/tokens",
    operation_id="create_token",
    operation_class=taking(Creating),
    responses=refusals(403, 409, 413, 415, 422, 503),
)
async def create_token(request: Request[Any, Any, Any]) -> TokenMade:
    """Create a token. Its secret is in this answer and nowhere else."""
    fields = await read_fields(request, Creating, required=True)
    principal, projects = principal_of(request), tuple(fields.projects)
    check_name(fields.name, "name")
    check_role(fields.role, "role")
    check_projects(projects, "projects")
    # An admin of some projects gives away what it has, and no more: the role of an admin is the highest.
    permit_in(principal, projects, ADMIN)
    lifetime = _lifetime(fields.expires, limits.DEFAULT_TOKEN_LIFETIME_MS, principal)
    said, digest = make_secret(fields.name)
    now = doors_of(request).engine.clock.now_ms()
    made = Token(fields.role, projects, digest, now, principal.name, lifetime)
    record = Kept("token", fields.name, encode_token(made), was=None)
    await ask(request, lambda number: Keep(number, (record,)))
    return _made(doors_of(request).auth.tokens, fields.name, made, now, said)


@post(
    "/v1/tokens/{token:str}/rotate",
    operation_id="rotate_token",
    operation_class=taking(Rotating, required=False),
    status_code=200,
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def rotate_token(request: Request[Any, Any, Any], token: FromPath[str]) -> TokenMade:
    """Give a token a new secret. The old one stays good for a while, so that nothing has to stop."""
    fields = await read_fields(request, Rotating)
    doors, principal = doors_of(request), principal_of(request)
    overlap = _duration(fields.overlap, limits.DEFAULT_TOKEN_OVERLAP_MS, limits.TOKEN_OVERLAP_MS_MAX, "overlap")
    said, digest = make_secret(token)
    for attempt in range(TRIES_MAX):
        await doors.engine.settled()
        known = _there(doors.auth.tokens, principal, token)
        lifetime = _lifetime(fields.expires, known.token.lifetime_ms, principal)
        now = doors.engine.clock.now_ms()
        made = _rotated(known.token, digest, now, overlap, lifetime)
        record = Kept("token", token, encode_token(made), was=known.kept)
        try:
            await ask(request, lambda number, record=record: Keep(number, (record,)))  # type: ignore[misc]
            break
        except Conflict as error:
            if error.code != "changed" or attempt == TRIES_MAX - 1:
                raise
    return _made(doors.auth.tokens, token, made, now, said)


@delete("/v1/tokens/{token:str}", operation_id="revoke_token", status_code=204, responses=refusals(403, 404, 503))
async def revoke_token(request: Request[Any, Any, Any], token: FromPath[str]) -> None:
    """Revoke a token: whoever shows it is refused from now on, and streams that it opened end."""
    doors = doors_of(request)
    await doors.engine.settled()
    _there(doors.auth.tokens, principal_of(request), token)
    await ask(request, lambda number: Keep(number, (Kept("token", token, None),)))


def _there(tokens: Tokens, principal: Principal, name: str) -> Known:
    known = _find(tokens, principal, name)
    if known is None:
        raise NotFound(f"there is no token {name:.100}, or it is none of yours")
    return known


def _find(tokens: Tokens, principal: Principal, name: str) -> Known | None:
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


def _lifetime(expires: Lasting, otherwise: int, principal: Principal) -> int:
    """How long a secret is good, in milliseconds; 0: for ever."""
    never = expires == NEVER or (expires is None and not otherwise)
    if never and principal.access.everywhere < ADMIN:
        words = f"only an admin of everything ({EVERYWHERE}) may have tokens that never expire; say for how long"
        raise Forbidden(words, path="expires")
    if never:
        return 0
    lifetime = _duration(expires, otherwise, limits.TOKEN_LIFETIME_MS_MAX, "expires")
    if not lifetime:
        raise Invalid("expires", f"a token lasts for a while, such as 30d, or `{NEVER}` expires")
    return lifetime


def _duration(given: Lasting, otherwise: int, most: int, path: str) -> int:
    if given is None:
        return otherwise
    length = duration_ms(given, path)
    if length > most:
        raise Invalid(path, f"this may be {most // 86_400_000} days at most")
    return length


def _made(tokens: Tokens, name: str, made: Token, now: int, said: str) -> TokenMade:
    return TokenMade(**msgspec.structs.asdict(_view(tokens, name, made, now)), token=said)


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
