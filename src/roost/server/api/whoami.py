"""Whoami: who the server takes somebody for, and where persons get their identity."""

from typing import Any

import msgspec
from litestar import Request, get

from roost.model.errors import NotFound
from roost.server.api.doors import doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of


class WhoamiView(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, from which address, and its roles by project; `*`: everywhere. Without `expires_ms` for ever."""

    name: str
    where: str
    roles: dict[str, str]
    expires_ms: int | None = None


class LoginView(msgspec.Struct, frozen=True, kw_only=True):
    """The OpenID issuer that this server believes, and the client that its identities have to be for."""

    issuer: str
    client_id: str


@get("/v1/whoami", operation_id="whoami", responses=refusals())
async def whoami(request: Request[Any, Any, Any]) -> WhoamiView:
    """Say who you are here, and what you may do."""
    who = principal_of(request)
    roles = dict(sorted(who.access.roles().items()))
    return WhoamiView(name=who.name, where=who.where, roles=roles, expires_ms=who.expires_ms or None)


@get("/v1/login", operation_id="login", security=[{}], responses=refusals(404))
async def login(request: Request[Any, Any, Any]) -> LoginView:
    """Say where to log in. It is open to all: whoever has no identity yet has to know."""
    issuer = doors_of(request).auth.issuer
    if issuer is None:
        raise NotFound("this server knows no issuer of identities; ask an admin for a token")
    return LoginView(issuer=issuer.url, client_id=issuer.client_id)
