"""How a handler calls an operation: in whose name, and through which dispatcher."""

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from litestar import Request
from litestar.connection import ASGIConnection

from roost.server.auth.principal import NOTHING, PRINCIPAL, Principal
from roost.server.operations.context import Call, Context
from roost.server.operations.dispatch import Dispatcher

P = ParamSpec("P")
Answer = TypeVar("Answer")
ApiRequest = Request[Any, Any, Any]


async def operate(
    request: ApiRequest,
    operation: Callable[Concatenate[Call, P], Awaitable[Answer]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Answer:
    """Perform an operation for the sender of this request."""
    dispatcher: Dispatcher = request.app.state["dispatcher"]
    return await dispatcher.perform(principal_of(request), operation, *args, **kwargs)


def context_of(request: ApiRequest) -> Context:
    """What this server is made of, for probes."""
    dispatcher: Dispatcher = request.app.state["dispatcher"]
    return dispatcher.context


def principal_of(connection: "ASGIConnection[Any, Any, Any, Any]") -> Principal:
    """Who asks: the outermost layer has found out, except where an operation is open to all."""
    principal = connection.scope.get(PRINCIPAL)
    if isinstance(principal, Principal):
        return principal
    client = connection.scope.get("client")
    return Principal("", client[0] if client else "", NOTHING)
