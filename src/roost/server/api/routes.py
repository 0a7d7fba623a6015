"""Routes: the application out of its handlers."""

from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from litestar import HttpMethod, Litestar, Request, Response, route
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter
from litestar.routes import HTTPRoute

from roost.model.errors import Invalid, RoostError
from roost.server.api import (
    audit,
    backup,
    changes,
    events,
    health,
    history,
    hooks,
    instances,
    join,
    logs,
    maintenance,
    members,
    nodes,
    plans,
    pools,
    projects,
    reservations,
    results,
    schedules,
    secrets,
    servers,
    services,
    tokens,
    versions,
    whoami,
    workloads,
)
from roost.server.api.doors import Doors
from roost.server.api.errors import answer_error
from roost.server.api.permissions import permit
from roost.server.api.schema import schema_config
from roost.server.plans import Plans

SEVERAL_METHODS = [
    "/v1/workloads",
    "/v1/nodes/{node:str}",
    "/v1/projects/{project:str}",
    "/v1/pools/{pool:str}",
    "/v1/maintenance",
    "/v1/join",
    "/v1/join-tokens",
    "/v1/reservations",
    "/v1/reservations/{reservation:str}",
    "/v1/tokens",
    "/v1/tokens/{token:str}",
    "/v1/projects/{project:str}/members/{subject:str}",
    "/v1/projects/{project:str}/secrets/{name:str}",
    "/v1/projects/{project:str}/hooks/{name:str}",
]


@route(SEVERAL_METHODS, http_method=HttpMethod.OPTIONS, operation_id="options", include_in_schema=False)
async def options(request: Request[Any, Any, Any]) -> Response[None]:
    """What can be done here. The framework's own answer names only the first method of a path with several."""
    here = [each for each in request.app.routes if each.path_format == request.scope["path_template"]]
    methods = {method for each in here if isinstance(each, HTTPRoute) for method in each.methods}
    return Response(None, status_code=204, headers={"allow": ", ".join(sorted(methods))})


async def refuse_unknown_questions(request: Request[Any, Any, Any]) -> None:
    """A misspelt parameter that is ignored gives an answer to another question."""
    asked = request.scope["query_string"]
    if not asked:
        return
    known = _questions(request.route_handler)
    for name, _ in parse_qsl(asked.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            words = (
                f"there is no such parameter here; known are {', '.join(known)}"
                if known
                else "no parameters are known here"
            )
            raise Invalid(name[:100], words)


@lru_cache(maxsize=256)  # as many as there are handlers
def _questions(handler: BaseRouteHandler) -> tuple[str, ...]:
    fields = handler.parsed_fn_signature.parameters
    told = {name: field.kwarg_definition for name, field in fields.items()}
    return tuple(each.name or name for name, each in told.items() if isinstance(each, QueryParameter))


HANDLERS = [
    options,
    workloads.submit,
    workloads.submit_batch,
    workloads.list_workloads,
    workloads.get_workload,
    workloads.get_why,
    workloads.cancel,
    workloads.retry,
    versions.list_versions,
    versions.promote,
    versions.rollback,
    schedules.list_schedules,
    schedules.get_schedule,
    schedules.run_schedule,
    services.list_services,
    services.get_service,
    plans.plan,
    instances.list_instances,
    instances.get_instance,
    results.post_result,
    logs.read_log,
    logs.follow_log,
    nodes.list_nodes,
    nodes.get_node,
    nodes.drain,
    nodes.cordon,
    nodes.resume,
    nodes.remove,
    join.create_join_token,
    join.list_join_tokens,
    join.revoke_join_token,
    join.get_authority,
    join.join,
    projects.list_projects,
    projects.get_project,
    projects.set_project,
    projects.unset_project,
    pools.list_pools,
    pools.get_pool,
    pools.set_pool,
    pools.mark_pool,
    pools.unset_pool,
    maintenance.get_maintenance,
    maintenance.begin_maintenance,
    maintenance.end_maintenance,
    reservations.list_reservations,
    reservations.get_reservation,
    reservations.reserve,
    reservations.cancel_reservation,
    tokens.list_tokens,
    tokens.get_token,
    tokens.create_token,
    tokens.rotate_token,
    tokens.revoke_token,
    members.list_members,
    members.set_member,
    members.remove_member,
    secrets.list_secrets,
    secrets.set_secret,
    secrets.remove_secret,
    secrets.reseal_secrets,
    hooks.list_hooks,
    hooks.get_hook,
    hooks.set_hook,
    hooks.remove_hook,
    hooks.test_hook,
    audit.audit,
    whoami.whoami,
    whoami.login,
    changes.changes,
    history.history,
    history.moment,
    history.get_history,
    history.history_instances,
    events.events,
    events.follow_events,
    health.status,
    health.metrics,
    health.livez,
    health.readyz,
    backup.backup,
    servers.list_servers,
    servers.leader,
    servers.transfer_leader,
]


def make_api(doors: Doors) -> Litestar:
    """The API for these doors. Who comes in was found out before (auth.py); what they may do is checked here."""
    return Litestar(
        HANDLERS,
        state=State({"doors": doors, "plans": Plans()}),
        guards=[permit],
        before_request=refuse_unknown_questions,
        exception_handlers={RoostError: answer_error, HTTPException: answer_error, Exception: answer_error},
        openapi_config=schema_config(),
        logging_config=None,
        debug=False,
    )
