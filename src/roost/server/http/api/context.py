"""How a request becomes an operation: its principal, its permission, and the dispatcher that performs it."""

from functools import lru_cache
from typing import Any, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from roost.model.errors import Forbidden
from roost.server.auth.principal import NOTHING, PRINCIPAL, Principal
from roost.server.operations.dispatch import Dispatcher
from roost.server.operations.permit import Rule, Scope, permit
from roost.server.operations.table import ANY, ANYBODY, BY_NAME, STRICTEST

ApiRequest = Request[Any, Any, Any]


def dispatcher_of(request: ApiRequest) -> Dispatcher:
    return cast(Dispatcher, request.app.state["dispatcher"])


def principal_of(connection: "ASGIConnection[Any, Any, Any, Any]") -> Principal:
    """The caller: authenticated by the outermost layer, except where an operation is open to all."""
    principal = connection.scope.get(PRINCIPAL)
    if isinstance(principal, Principal):
        return principal
    client = connection.scope.get("client")
    return Principal("", client[0] if client else "", NOTHING)


async def permit_request(connection: "ASGIConnection[Any, Any, Any, Any]", handler: BaseRouteHandler) -> None:
    """Refuse a caller without the role that an operation needs. This guards every request, before its body is read."""
    principal, project = principal_of(connection), connection.scope["path_params"].get("project", "")
    try:
        permit(principal, rule_of(handler), project)
    except Forbidden as error:
        dispatcher = cast(Dispatcher, connection.app.state["dispatcher"])
        dispatcher.context.note(principal, name_of(handler), project, error.message, refused=True)
        raise


@lru_cache(maxsize=256)  # as many as there are handlers
def rule_of(handler: BaseRouteHandler) -> Rule:
    """The rule of a handler. The framework's own describe the API and the methods of a path."""
    if str(getattr(handler.fn, "__module__", "")).startswith("litestar."):
        return Rule(ANYBODY, Scope.KNOWN, ANY)
    return BY_NAME.get(name_of(handler), STRICTEST)


def name_of(handler: BaseRouteHandler) -> str:
    name = getattr(handler, "operation_id", None)
    return name if isinstance(name, str) else handler.handler_name
