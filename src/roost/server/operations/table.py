"""One row per operation: the role it needs, where that role has to be held, whether only the leader answers, its route.

The REST API is made from this table (http/api/routes.py), and every call of a controller performs an operation of it.
"""

from collections.abc import Callable
from typing import Any

from roost.model.records.access import ADMIN, OPERATOR, SUBMITTER, VIEWER
from roost.server.operations.fleet import blob_keys, join, nodes, pools, reservations, servers
from roost.server.operations.permit import Rule, Scope
from roost.server.operations.sharing import access, projects, secrets, tokens, usage, webhooks
from roost.server.operations.work import (
    caches,
    copies,
    events,
    files,
    history,
    instances,
    logs,
    named_files,
    pipelines,
    schedules,
    services,
    templates,
    tests,
    tunnels,
    vms,
    workloads,
)

ANYBODY = 0
LEADER, ANY = True, False

RULES: dict[Callable[..., Any], Rule] = {
    # workloads
    # The projects are in the body.
    workloads.submit: Rule(SUBMITTER, Scope.SOMEWHERE, LEADER, "POST /v1/workloads", 201),
    workloads.submit_batch: Rule(SUBMITTER, Scope.SOMEWHERE, LEADER, "POST /v1/workloads/batch", 201),
    pipelines.start_pipeline: Rule(SUBMITTER, Scope.SOMEWHERE, LEADER, "POST /v1/pipelines", 201),
    workloads.plan: Rule(SUBMITTER, Scope.SOMEWHERE, LEADER, "POST /v1/plans"),
    workloads.list_workloads: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/workloads"),
    workloads.get_workload: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/workloads/{project}/{name}"),
    workloads.why: Rule(VIEWER, Scope.PROJECT, LEADER, "GET /v1/workloads/{project}/{name}/why"),
    workloads.cancel: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/workloads/{project}/{name}/cancel"),
    workloads.retry: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/workloads/{project}/{name}/retry"),
    workloads.delete_workload: Rule(SUBMITTER, Scope.PROJECT, LEADER, "DELETE /v1/workloads/{project}/{name}"),
    # The workload says which role approves it.
    workloads.approve: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/workloads/{project}/{name}/approve"),
    workloads.list_versions: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/workloads/{project}/{name}/versions"),
    workloads.promote: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/workloads/{project}/{name}/promote"),
    workloads.rollback: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/workloads/{project}/{name}/rollback"),
    schedules.list_schedules: Rule(VIEWER, Scope.SOMEWHERE, LEADER, "GET /v1/schedules"),
    schedules.get_schedule: Rule(VIEWER, Scope.PROJECT, LEADER, "GET /v1/schedules/{project}/{name}"),
    schedules.run_schedule: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/schedules/{project}/{name}/run", 201),
    # Shared ones (project `*`) are for all to see and use.
    templates.list_templates: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/templates"),
    templates.get_template: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/templates/{project}/{name}"),
    templates.apply_template: Rule(
        OPERATOR, Scope.PROJECT, LEADER, "PUT /v1/templates/{project}/{name}", rank_of_all=ADMIN
    ),
    templates.delete_template: Rule(
        OPERATOR, Scope.PROJECT, LEADER, "DELETE /v1/templates/{project}/{name}", rank_of_all=ADMIN
    ),
    services.list_services: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/services"),
    services.get_service: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/services/{project}/{name}"),
    vms.list_vms: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/vms"),
    vms.get_vms: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/vms/{project}/{name}"),
    vms.set_power: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/vms/{project}/{name}/power"),
    instances.post_result: Rule(
        SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/workloads/{project}/{name}/instances/{index}/result"
    ),
    instances.get_result: Rule(
        VIEWER, Scope.PROJECT, ANY, "GET /v1/workloads/{project}/{name}/instances/{index}/result"
    ),
    instances.list_results: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/workloads/{project}/{name}/results"),
    tests.get_tests: Rule(VIEWER, Scope.PROJECT, LEADER, "GET /v1/workloads/{project}/{name}/tests"),
    instances.list_instances: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/workloads/{project}/{name}/instances"),
    instances.get_instance: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/workloads/{project}/{name}/instances/{index}"),
    logs.read_log: Rule(VIEWER, Scope.PROJECT, LEADER, "GET /v1/workloads/{project}/{name}/instances/{index}/log"),
    logs.log_lines: Rule(
        VIEWER, Scope.PROJECT, LEADER, "GET /v1/workloads/{project}/{name}/instances/{index}/log/lines"
    ),
    logs.follow_log: Rule(
        VIEWER, Scope.PROJECT, LEADER, "GET /v1/workloads/{project}/{name}/instances/{index}/log/follow"
    ),
    # A copy out of a run takes room of the project for as long as it lasts.
    tunnels.open_tunnel: Rule(
        SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/workloads/{project}/{name}/instances/{index}/tunnels", 201
    ),
    copies.copy_files: Rule(
        SUBMITTER, Scope.PROJECT, LEADER, "PUT /v1/workloads/{project}/{name}/instances/{index}/copies/{copy}"
    ),
    copies.end_copy: Rule(
        SUBMITTER, Scope.PROJECT, LEADER, "DELETE /v1/workloads/{project}/{name}/instances/{index}/copies/{copy}"
    ),
    # files
    files.find_missing_files: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/projects/{project}/files/missing"),
    files.put_blob: Rule(SUBMITTER, Scope.PROJECT, LEADER, "PUT /v1/projects/{project}/blobs/{digest}"),
    files.put_pack: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/projects/{project}/files/pack"),
    files.create_files: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/projects/{project}/files", 201),
    files.get_files: Rule(VIEWER, Scope.PROJECT, LEADER, "GET /v1/projects/{project}/files/{digest}"),
    files.read_blob: Rule(VIEWER, Scope.PROJECT, LEADER, "GET /v1/projects/{project}/blobs/{digest}"),
    caches.list_caches: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/projects/{project}/cache"),
    caches.delete_caches: Rule(SUBMITTER, Scope.PROJECT, LEADER, "POST /v1/projects/{project}/cache/delete"),
    named_files.list_named_files: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/projects/{project}/named-files"),
    named_files.get_named_files: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/projects/{project}/named-files/{name}"),
    named_files.set_named_files: Rule(
        SUBMITTER, Scope.PROJECT, LEADER, "PUT /v1/projects/{project}/named-files/{name}"
    ),
    named_files.delete_named_files: Rule(
        SUBMITTER, Scope.PROJECT, LEADER, "DELETE /v1/projects/{project}/named-files/{name}"
    ),
    files.link_files: Rule(VIEWER, Scope.PROJECT, LEADER, "POST /v1/projects/{project}/files/links"),
    files.read_contents: Rule(VIEWER, Scope.PROJECT, LEADER, "POST /v1/projects/{project}/files/contents"),
    events.changes: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/changes"),
    # the past
    history.history: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/history"),
    history.moment: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/history/at"),
    history.get_history: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/history/{project}/{name}"),
    history.history_instances: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/history/{project}/{name}/{serial}/instances"),
    events.events: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/events"),  # who asked for what: only for operators
    events.follow_events: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/events/follow"),
    # machines
    nodes.list_nodes: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/nodes"),
    nodes.get_node: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/nodes/{node}"),
    nodes.drain: Rule(OPERATOR, Scope.ALL, LEADER, "POST /v1/nodes/{node}/drain"),
    nodes.preview_drain: Rule(OPERATOR, Scope.ALL, LEADER),
    nodes.cordon: Rule(OPERATOR, Scope.ALL, LEADER, "POST /v1/nodes/{node}/cordon"),
    nodes.uncordon: Rule(OPERATOR, Scope.ALL, LEADER, "POST /v1/nodes/{node}/uncordon"),
    nodes.remove: Rule(OPERATOR, Scope.ALL, LEADER, "DELETE /v1/nodes/{node}"),
    blob_keys.get_blob_keys: Rule(ADMIN, Scope.ALL, LEADER, "GET /v1/blobs/credentials"),
    blob_keys.set_blob_keys: Rule(ADMIN, Scope.ALL, LEADER, "PUT /v1/blobs/credentials"),
    blob_keys.remove_blob_keys: Rule(ADMIN, Scope.ALL, LEADER, "DELETE /v1/blobs/credentials"),
    join.create_join_token: Rule(OPERATOR, Scope.ALL, LEADER, "POST /v1/join-tokens", 201),
    join.list_join_tokens: Rule(OPERATOR, Scope.ALL, ANY, "GET /v1/join-tokens"),
    join.revoke_join_token: Rule(OPERATOR, Scope.ALL, LEADER, "DELETE /v1/join-tokens/{token}"),
    join.get_authority: Rule(ANYBODY, Scope.OPEN, ANY, "GET /v1/join"),
    join.join: Rule(ANYBODY, Scope.OPEN, LEADER, "POST /v1/join", 201),  # the secret is in the body
    pools.list_pools: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/pools"),
    pools.get_pool: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/pools/{pool}"),
    pools.set_pool: Rule(OPERATOR, Scope.ALL, LEADER, "PUT /v1/pools/{pool}"),
    pools.mark_pool: Rule(OPERATOR, Scope.ALL, LEADER, "PUT /v1/pools/{pool}/status"),
    pools.unset_pool: Rule(OPERATOR, Scope.ALL, LEADER, "DELETE /v1/pools/{pool}"),
    # sharing
    projects.list_projects: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/projects"),
    projects.get_project: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/projects/{project}"),
    projects.set_project: Rule(OPERATOR, Scope.ALL, LEADER, "PUT /v1/projects/{project}"),
    projects.unset_project: Rule(OPERATOR, Scope.ALL, LEADER, "DELETE /v1/projects/{project}"),
    usage.usage: Rule(VIEWER, Scope.SOMEWHERE, LEADER, "GET /v1/usage"),
    reservations.list_reservations: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/reservations"),
    reservations.get_reservation: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/reservations/{reservation}"),
    reservations.reserve: Rule(OPERATOR, Scope.ALL, LEADER, "POST /v1/reservations", 201),
    reservations.cancel_reservation: Rule(OPERATOR, Scope.ALL, LEADER, "DELETE /v1/reservations/{reservation}"),
    # who may do what
    access.whoami: Rule(ANYBODY, Scope.KNOWN, ANY, "GET /v1/whoami"),
    access.login: Rule(ANYBODY, Scope.OPEN, ANY, "GET /v1/login"),
    # Tokens whose projects are all the caller's.
    tokens.list_tokens: Rule(ADMIN, Scope.SOMEWHERE, ANY, "GET /v1/tokens"),
    tokens.get_token: Rule(ADMIN, Scope.SOMEWHERE, ANY, "GET /v1/tokens/{token}"),
    tokens.create_token: Rule(ADMIN, Scope.SOMEWHERE, LEADER, "POST /v1/tokens", 201),
    tokens.rotate_token: Rule(ADMIN, Scope.SOMEWHERE, LEADER, "POST /v1/tokens/{token}/rotate"),
    tokens.revoke_token: Rule(ADMIN, Scope.SOMEWHERE, LEADER, "DELETE /v1/tokens/{token}"),
    access.list_members: Rule(ADMIN, Scope.PROJECT, ANY, "GET /v1/projects/{project}/members"),
    access.set_member: Rule(ADMIN, Scope.PROJECT, LEADER, "PUT /v1/projects/{project}/members/{subject}"),
    access.remove_member: Rule(ADMIN, Scope.PROJECT, LEADER, "DELETE /v1/projects/{project}/members/{subject}"),
    # Names and sizes; no operation shows a value.
    secrets.list_secrets: Rule(VIEWER, Scope.PROJECT, ANY, "GET /v1/projects/{project}/secrets"),
    secrets.set_secret: Rule(OPERATOR, Scope.PROJECT, LEADER, "PUT /v1/projects/{project}/secrets/{name}"),
    secrets.remove_secret: Rule(OPERATOR, Scope.PROJECT, LEADER, "DELETE /v1/projects/{project}/secrets/{name}"),
    secrets.reseal_secrets: Rule(ADMIN, Scope.ALL, LEADER, "POST /v1/secrets/reseal"),
    # Webhooks of the caller's projects: a URL may be secret.
    webhooks.list_hooks: Rule(OPERATOR, Scope.SOMEWHERE, LEADER, "GET /v1/hooks"),
    webhooks.get_hook: Rule(OPERATOR, Scope.PROJECT, LEADER, "GET /v1/projects/{project}/hooks/{name}"),
    # A hook of `*` reports work of every project.
    webhooks.set_hook: Rule(
        OPERATOR, Scope.PROJECT, LEADER, "PUT /v1/projects/{project}/hooks/{name}", rank_of_all=ADMIN
    ),
    webhooks.remove_hook: Rule(
        OPERATOR, Scope.PROJECT, LEADER, "DELETE /v1/projects/{project}/hooks/{name}", rank_of_all=ADMIN
    ),
    webhooks.test_hook: Rule(
        OPERATOR, Scope.PROJECT, LEADER, "POST /v1/projects/{project}/hooks/{name}/test", rank_of_all=ADMIN
    ),
    access.audit: Rule(OPERATOR, Scope.ALL, ANY, "GET /v1/audit"),
    # the whole
    servers.status: Rule(VIEWER, Scope.SOMEWHERE, LEADER, "GET /v1/status"),
    servers.get_maintenance: Rule(VIEWER, Scope.SOMEWHERE, ANY, "GET /v1/maintenance"),
    servers.begin_maintenance: Rule(OPERATOR, Scope.ALL, LEADER, "PUT /v1/maintenance"),
    servers.end_maintenance: Rule(OPERATOR, Scope.ALL, LEADER, "DELETE /v1/maintenance"),
    servers.metrics: Rule(VIEWER, Scope.ALL, ANY, "GET /metrics"),  # it names all projects
    servers.backup: Rule(ADMIN, Scope.ALL, ANY, "GET /v1/backup"),
    servers.list_servers: Rule(VIEWER, Scope.SOMEWHERE, LEADER, "GET /v1/servers"),
    servers.transfer_leader: Rule(OPERATOR, Scope.ALL, LEADER, "POST /v1/leader/transfer", 202),
    servers.revoke_server_certificates: Rule(ADMIN, Scope.ALL, LEADER, "POST /v1/servers/certificates/revoke"),
}
#: Of one server, and of nothing that it decides: they are answered by the server that was asked.
PROBES = {
    "leader": Rule(ANYBODY, Scope.OPEN, ANY),
    "livez": Rule(ANYBODY, Scope.OPEN, ANY),
    "readyz": Rule(ANYBODY, Scope.OPEN, ANY),
    "options": Rule(ANYBODY, Scope.KNOWN, ANY),
}
STRICTEST = Rule(ADMIN, Scope.ALL, LEADER)  # for a name without a row

OPERATIONS: dict[str, Callable[..., Any]] = {operation.__name__: operation for operation in RULES}
BY_NAME: dict[str, Rule] = {**{name: RULES[operation] for name, operation in OPERATIONS.items()}, **PROBES}
