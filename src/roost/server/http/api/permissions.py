"""Permissions of the REST API: every request is checked against the table of operations before its body is read."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.routes import HTTPRoute

from roost.server.http.api.context import principal_of
from roost.server.operations.permit import permit
from roost.server.operations.table import ANY, ANYBODY, BY_NAME, STRICTEST, Rule, Scope


async def permit_request(connection: "ASGIConnection[Any, Any, Any, Any]", handler: BaseRouteHandler) -> None:
    """Refuse a caller without the role that an operation needs; asked before a handler, for every request."""
    permit(principal_of(connection), _rule(handler), connection.scope["path_params"].get("project", ""))


def operations(routes: Iterable[Any]) -> dict[str, Rule]:
    """Every operation of an application, without the framework's own, and its rule."""
    handlers = [handler for route in routes if isinstance(route, HTTPRoute) for handler in route.route_handlers]
    return {_name(item): _rule(item) for item in handlers if not _is_framework(item)}


@lru_cache(maxsize=256)  # as many as there are handlers
def _rule(handler: BaseRouteHandler) -> Rule:
    if _is_framework(handler):
        return Rule(ANYBODY, Scope.KNOWN, ANY)
    return BY_NAME.get(_name(handler), STRICTEST)


def _name(handler: BaseRouteHandler) -> str:
    name = getattr(handler, "operation_id", None)
    return name if isinstance(name, str) else handler.handler_name


def _is_framework(handler: BaseRouteHandler) -> bool:
    """The framework's own: the description of the API, and which methods a path knows."""
    return str(getattr(handler.fn, "__module__", "")).startswith("litestar.")
