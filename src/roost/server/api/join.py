"""Joining: tokens for machines that are to become nodes, and the one endpoint that such a machine may use."""

from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.params import FromPath

from roost.model.errors import Invalid
from roost.model.joining import Credential, JoinRequest
from roost.model.units import duration_ms
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of
from roost.server.join import LIFE_MS_DEFAULT, JoinTokenMade, JoinTokenView

JOIN_BYTES_MAX = 16 << 10  # a token, a name and a certificate request have 1 KB; everybody may send this
UNLIMITED = "unlimited"


class JoinTokenPage(msgspec.Struct, frozen=True):
    """All join tokens that can be used, by id."""

    revision: int
    items: list[JoinTokenView]


class Inviting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pool the machine will belong to (nothing: as its agent says), how often the token can be used (a number,
    or `unlimited`), and for how long, like `1h`."""

    pool: str = ""
    uses: int | str = 1
    expires: int | float | str | None = None


class AuthorityView(msgspec.Struct, frozen=True):
    """The CA's certificate, in PEM. Whoever has its fingerprint from elsewhere can trust it."""

    certificate: str
    fingerprint: str


@post(
    "/v1/join-tokens",
    operation_id="create_join_token",
    operation_class=taking(Inviting, required=False),
    responses=refusals(403, 409, 413, 415, 422, 503),
)
async def create_join_token(request: Request[Any, Any, Any]) -> JoinTokenMade:
    """Make a token with which a machine can join. It is told this once."""
    asked = await read_fields(request, Inviting)
    if isinstance(asked.uses, str) and asked.uses != UNLIMITED:
        raise Invalid("uses", f"this is a number or {UNLIMITED!r}, not {asked.uses!r:.60}")
    uses = None if isinstance(asked.uses, str) else asked.uses
    life_ms = LIFE_MS_DEFAULT if asked.expires is None else duration_ms(asked.expires, "expires")
    return await doors_of(request).joining.create(asked.pool, uses, life_ms, principal_of(request).by)


@get("/v1/join-tokens", operation_id="list_join_tokens", responses=refusals(403, 503))
async def list_join_tokens(request: Request[Any, Any, Any]) -> JoinTokenPage:
    """List join tokens, never their secrets."""
    doors = doors_of(request)
    state = await doors.engine.settled()
    return JoinTokenPage(state.revision, doors.joining.listed())


@delete(
    "/v1/join-tokens/{token:str}",
    operation_id="revoke_join_token",
    status_code=204,
    responses=refusals(403, 404, 503),
)
async def revoke_join_token(request: Request[Any, Any, Any], token: FromPath[str]) -> None:
    """Make a join token useless. Nodes that have joined with it stay."""
    await doors_of(request).joining.revoke(token, principal_of(request).by)


@get("/v1/join", operation_id="get_authority", security=[{}], responses=refusals(503))
async def get_authority(request: Request[Any, Any, Any]) -> AuthorityView:
    """The CA's certificate, for a machine that holds its fingerprint."""
    authority = doors_of(request).joining.certificates.authority
    return AuthorityView(authority.certificate, authority.fingerprint)


@post(
    "/v1/join",
    operation_id="join",
    security=[{}],
    operation_class=taking(JoinRequest),
    responses=refusals(409, 413, 415, 422, 429, 503),
)
async def join(request: Request[Any, Any, Any]) -> Credential:
    """Become a node: a join token's secret and a certificate request in, a certificate out."""
    asked = await read_fields(request, JoinRequest, required=True, most=JOIN_BYTES_MAX)
    client = request.scope.get("client")
    return await doors_of(request).joining.join(asked, client[0] if client else "")
