"""Permissions: which operation needs which role, and where. One table, and the one place that holds requests to it."""

from collections.abc import AsyncGenerator, Iterable
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.routes import HTTPRoute

from roost.model.access import ADMIN, EVERYWHERE, OPERATOR, ROLES, SUBMITTER, VIEWER
from roost.model.errors import Forbidden, NotFound
from roost.model.events import Wanted
from roost.server import sse
from roost.server.auth_principal import PRINCIPAL, Principal


class Where(Enum):
    """Where a role has to be held."""

    OPEN = "nowhere: also for those who show no token"
    KNOWN = "nowhere: for everybody who is known"
    SOMEWHERE = "in some project; what comes of it is only of projects that may be seen, or is checked by name"
    PROJECT = "in the project of the path, or everywhere"
    ALL = "everywhere"


class Permission(NamedTuple):
    """The least role, as its rank, and where it has to be held."""

    rank: int
    where: Where


READ_SOMEWHERE = Permission(VIEWER, Where.SOMEWHERE)
READ_PROJECT = Permission(VIEWER, Where.PROJECT)
OPERATE = Permission(OPERATOR, Where.ALL)
STRICTEST = Permission(ADMIN, Where.ALL)  # for what the table does not name

PERMISSIONS: dict[str, Permission] = {
    # workloads
    "submit": Permission(SUBMITTER, Where.SOMEWHERE),  # the projects are in the body
    "submit_batch": Permission(SUBMITTER, Where.SOMEWHERE),
    "plan": Permission(SUBMITTER, Where.SOMEWHERE),
    "list_workloads": READ_SOMEWHERE,
    "get_workload": READ_PROJECT,
    "why": READ_PROJECT,
    "cancel": Permission(SUBMITTER, Where.PROJECT),
    "retry": Permission(SUBMITTER, Where.PROJECT),
    "list_versions": READ_PROJECT,
    "promote": Permission(SUBMITTER, Where.PROJECT),
    "rollback": Permission(SUBMITTER, Where.PROJECT),
    "list_schedules": READ_SOMEWHERE,
    "get_schedule": READ_PROJECT,
    "run_schedule": Permission(SUBMITTER, Where.PROJECT),
    "list_services": READ_SOMEWHERE,
    "get_service": READ_PROJECT,
    "post_result": Permission(SUBMITTER, Where.PROJECT),
    "list_instances": READ_PROJECT,
    "get_instance": READ_PROJECT,
    "read_log": READ_PROJECT,
    "follow_log": READ_PROJECT,
    "changes": READ_SOMEWHERE,
    # the past
    "history": READ_SOMEWHERE,
    "moment": READ_SOMEWHERE,
    "get_history": READ_PROJECT,
    "history_instances": READ_PROJECT,
    "events": READ_SOMEWHERE,  # who asked for what: only for operators
    "follow_events": READ_SOMEWHERE,
    # machines
    "list_nodes": READ_SOMEWHERE,
    "get_node": READ_SOMEWHERE,
    "drain": OPERATE,
    "cordon": OPERATE,
    "resume": OPERATE,
    "remove": OPERATE,
    "create_join_token": OPERATE,
    "list_join_tokens": OPERATE,
    "revoke_join_token": OPERATE,
    "get_authority": Permission(0, Where.OPEN),
    "join": Permission(0, Where.OPEN),  # the secret is in the body
    "list_pools": READ_SOMEWHERE,
    "get_pool": READ_SOMEWHERE,
    "set_pool": OPERATE,
    "mark_pool": OPERATE,
    "unset_pool": OPERATE,
    # sharing
    "list_projects": READ_SOMEWHERE,
    "get_project": READ_PROJECT,
    "set_project": OPERATE,
    "unset_project": OPERATE,
    "list_reservations": READ_SOMEWHERE,
    "get_reservation": READ_SOMEWHERE,
    "reserve": OPERATE,
    "cancel_reservation": OPERATE,
    # who may do what
    "whoami": Permission(0, Where.KNOWN),
    "login": Permission(0, Where.OPEN),
    "list_tokens": Permission(ADMIN, Where.SOMEWHERE),  # those whose projects are all the caller's
    "get_token": Permission(ADMIN, Where.SOMEWHERE),
    "create_token": Permission(ADMIN, Where.SOMEWHERE),
    "rotate_token": Permission(ADMIN, Where.SOMEWHERE),
    "revoke_token": Permission(ADMIN, Where.SOMEWHERE),
    "list_members": Permission(ADMIN, Where.PROJECT),
    "set_member": Permission(ADMIN, Where.PROJECT),
    "remove_member": Permission(ADMIN, Where.PROJECT),
    "list_secrets": READ_PROJECT,  # names and sizes; no operation tells a value
    "set_secret": Permission(OPERATOR, Where.PROJECT),
    "remove_secret": Permission(OPERATOR, Where.PROJECT),
    "reseal_secrets": Permission(ADMIN, Where.ALL),
    "list_hooks": Permission(OPERATOR, Where.SOMEWHERE),  # those of the caller's projects: a URL may tell a secret
    "get_hook": Permission(OPERATOR, Where.PROJECT),
    "set_hook": Permission(OPERATOR, Where.PROJECT),  # of all projects: for admins of everything
    "remove_hook": Permission(OPERATOR, Where.PROJECT),
    "test_hook": Permission(OPERATOR, Where.PROJECT),
    "audit": OPERATE,
    # the whole
    "status": READ_SOMEWHERE,
    "get_maintenance": READ_SOMEWHERE,
    "begin_maintenance": OPERATE,
    "end_maintenance": OPERATE,
    "metrics": Permission(VIEWER, Where.ALL),  # it names all projects
    "backup": STRICTEST,
    "list_servers": READ_SOMEWHERE,
    "transfer_leader": OPERATE,
    "leader": Permission(0, Where.OPEN),
    "livez": Permission(0, Where.OPEN),
    "readyz": Permission(0, Where.OPEN),
    "options": Permission(0, Where.KNOWN),
}


async def permit(connection: "ASGIConnection[Any, Any, Any, Any]", handler: BaseRouteHandler) -> None:
    """Refuse whoever may not do this; asked before a handler, for every request."""
    rank, where = _permission(handler)
    if where in (Where.OPEN, Where.KNOWN):  # the outermost layer has asked who it is, where that matters
        return
    access = principal_of(connection).access
    if where is Where.PROJECT:
        project = connection.scope["path_params"]["project"]
        held = access.everywhere if project == EVERYWHERE else access.rank_in(project)
        if not held and project != EVERYWHERE:
            raise NotFound(f"there is no project {project:.100}, or it is none of yours")
        if held < rank:
            raise Forbidden(f"this needs the role {ROLES[rank - 1]} in project {project:.100}")
    elif where is Where.SOMEWHERE and access.highest < rank:
        raise Forbidden(f"this needs the role {ROLES[rank - 1]} in a project, or everywhere")
    elif where is Where.ALL and access.everywhere < rank:
        raise Forbidden(f"this needs the role {ROLES[rank - 1]} everywhere")


def permit_in(principal: Principal, projects: Iterable[str], rank: int) -> None:
    """Refuse whoever has not this role in projects that a body names."""
    for project in dict.fromkeys(projects):
        if not principal.access.covers((project,), rank):
            raise Forbidden(f"this needs the role {ROLES[rank - 1]} in project {project:.100}", path="project")


def permit_wanted(principal: Principal, wanted: Iterable[Wanted]) -> None:
    """Refuse workloads for projects that are not the caller's, and rules about work that it cannot see.

    Who may ask to be near any workload could find out by guessing which there are, and on which nodes.
    """
    wanted = tuple(wanted)
    permit_in(principal, (each.project for each in wanted), SUBMITTER)
    if principal.access.sees_all:
        return
    for each in wanted:
        for rule in each.policy.ask.company.rules if each.policy.ask.company is not None else ():
            project = rule.subject.partition("/")[0].partition("?")[0]
            if not principal.access.sees(project):
                words = f"a rule of {each.name} is about project {project}, in which you have no role"
                raise Forbidden(words, path=f"placement.{rule.kind}")


def principal_of(connection: "ASGIConnection[Any, Any, Any, Any]") -> Principal:
    """Who asks: the outermost layer has found out."""
    principal = connection.scope[PRINCIPAL]  # type: ignore[literal-required]
    assert isinstance(principal, Principal)
    return principal


async def while_permitted(
    principal: Principal, source: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:  # fmt: skip
    """A stream that ends when whoever reads it would not be let in any more, or with other roles."""
    try:
        async for piece in source:
            if not principal.still():
                yield sse.event({"message": "your token has ended, or your roles are others now"}, event="stopping")
                return
            yield piece
    finally:
        await source.aclose()


def operations(routes: Iterable[Any]) -> dict[str, Permission]:
    """Every operation of an application, without the framework's own, and what it needs."""
    handlers = [handler for route in routes if isinstance(route, HTTPRoute) for handler in route.route_handlers]
    return {_name(each): _permission(each) for each in handlers if not _is_framework(each)}


@lru_cache(maxsize=256)  # as many as there are handlers
def _permission(handler: BaseRouteHandler) -> Permission:
    if _is_framework(handler):
        return Permission(0, Where.KNOWN)
    return PERMISSIONS.get(_name(handler), STRICTEST)


def _name(handler: BaseRouteHandler) -> str:
    name = getattr(handler, "operation_id", None)
    return name if isinstance(name, str) else handler.handler_name


def _is_framework(handler: BaseRouteHandler) -> bool:
    """The framework's own: the description of the API, and which methods a path knows."""
    return str(getattr(handler.fn, "__module__", "")).startswith("litestar.")
