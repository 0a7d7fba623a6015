"""Who may do what: every operation, every role, one's own project and a foreign one. A refusal changes nothing."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any, NamedTuple

import pytest
from litestar import Litestar, get

from roost.model.records.access import ADMIN
from roost.server.operations.permit import Rule, Scope
from roost.server.operations.table import BY_NAME, STRICTEST
from tests.security.callers import Caller, caller, quiet_server, status_of
from tests.server.api_requests import operations
from tests.server.inprocess_server import InprocessServer

ROLES = ("viewer", "submitter", "operator", "admin")
NUMBERS = count()
ENDLESS = {"changes", "follow_log", "follow_events"}
NO_BLOB = f"sha256:{0:064x}"
NO_HISTORY = (200, 404, 503)  # the server keeps none: a permitted caller gets that answer
OPEN = {"livez", "readyz", "leader", "login", "join", "get_authority"}


class Row(NamedTuple):
    """An operation: {p} is a project with the workload `job` in it, {n} a node of its own, {x} a name of its own."""

    name: str
    method: str
    path: str
    role: str  # the least one
    kind: str  # project: in the project of the path. named: in the project of the body. some: anywhere. all: everywhere
    body: Any = None
    done: tuple[int, ...] = (200,)


TABLE = [
    Row("submit", "POST", "/v1/workloads", "submitter", "named",
        {"name": "{x}", "project": "{p}", "command": "y"}, (201,)),
    Row("submit_batch", "POST", "/v1/workloads/batch", "submitter", "named",
        [{"name": "{x}", "project": "{p}", "command": "y"}], (201,)),
    Row("start_pipeline", "POST", "/v1/pipelines", "submitter", "named",
        {"pipeline": {"name": "{x}", "project": "{p}", "actions": [{"name": "a", "steps": ["y"]}]}}, (201,)),
    Row("plan", "POST", "/v1/plans", "submitter", "named", [{"name": "{x}", "project": "{p}", "command": "y"}]),
    Row("list_workloads", "GET", "/v1/workloads", "viewer", "some"),
    Row("get_workload", "GET", "/v1/workloads/{p}/job", "viewer", "project"),
    Row("why", "GET", "/v1/workloads/{p}/job/why", "viewer", "project"),
    Row("cancel", "POST", "/v1/workloads/{p}/job/cancel", "submitter", "project", {}),
    Row("retry", "POST", "/v1/workloads/{p}/job/retry", "submitter", "project", {}, (200, 409)),
    Row("delete_workload", "DELETE", "/v1/workloads/{p}/job", "submitter", "project", None, (409,)),
    Row("approve", "POST", "/v1/workloads/{p}/job/approve", "submitter", "project", None, (409,)),
    Row("post_result", "POST", "/v1/workloads/{p}/job/instances/0/result", "submitter", "project",
        {"token": 1, "code": 0}, (404, 409)),
    Row("open_tunnel", "POST", "/v1/workloads/{p}/job/instances/0/tunnels", "submitter", "project", {"argv": ["true"]},
        (404, 409)),
    Row("copy_files", "PUT", f"/v1/workloads/{{p}}/job/instances/0/copies/{'0' * 32}", "submitter", "project", {},
        (404, 409)),
    Row("end_copy", "DELETE", f"/v1/workloads/{{p}}/job/instances/0/copies/{'0' * 32}", "submitter", "project", None,
        (204,)),
    Row("get_result", "GET", "/v1/workloads/{p}/job/instances/0/result", "viewer", "project", None, (404,)),
    Row("list_results", "GET", "/v1/workloads/{p}/job/results", "viewer", "project"),
    Row("get_tests", "GET", "/v1/workloads/{p}/job/tests", "viewer", "project"),
    Row("list_versions", "GET", "/v1/workloads/{p}/job/versions", "viewer", "project"),
    Row("promote", "POST", "/v1/workloads/{p}/job/promote", "submitter", "project", None, (409,)),
    Row("rollback", "POST", "/v1/workloads/{p}/job/rollback", "submitter", "project", {}, (404, 409)),
    Row("list_schedules", "GET", "/v1/schedules", "viewer", "some"),
    Row("usage", "GET", "/v1/usage", "viewer", "some"),
    Row("get_schedule", "GET", "/v1/schedules/{p}/job", "viewer", "project", None, (404,)),
    Row("run_schedule", "POST", "/v1/schedules/{p}/job/run", "submitter", "project", None, (409,)),
    Row("list_templates", "GET", "/v1/templates", "viewer", "some"),
    Row("get_template", "GET", "/v1/templates/{p}/train", "viewer", "hidden"),
    Row("apply_template", "PUT", "/v1/templates/{p}/{x}", "operator", "project", {"workload": {"command": "y"}}),
    Row("delete_template", "DELETE", "/v1/templates/{p}/train", "operator", "project", None, (204,)),
    Row("submit", "POST", "/v1/workloads", "submitter", "named",
        {"name": "{x}", "project": "{p}", "template": {"name": "train"}}, (201,)),
    Row("list_services", "GET", "/v1/services", "viewer", "some"),
    Row("get_service", "GET", "/v1/services/{p}/job", "viewer", "project", None, (409,)),
    Row("list_vms", "GET", "/v1/vms", "viewer", "some"),
    Row("get_vms", "GET", "/v1/vms/{p}/job", "viewer", "project", None, (409,)),
    Row("set_power", "POST", "/v1/vms/{p}/job/power", "submitter", "project", {"action": "stop"}, (409,)),
    Row("list_instances", "GET", "/v1/workloads/{p}/job/instances", "viewer", "project"),
    Row("get_instance", "GET", "/v1/workloads/{p}/job/instances/0", "viewer", "project"),
    Row("find_missing_files", "POST", "/v1/projects/{p}/files/missing", "submitter", "project", {"digests": []}),
    Row("put_blob", "PUT", f"/v1/projects/{{p}}/blobs/{NO_BLOB}?size=1", "submitter", "project", None, (200,)),
    Row("put_pack", "POST", "/v1/projects/{p}/files/pack", "submitter", "project", None, (422,)),
    Row("create_files", "POST", "/v1/projects/{p}/files", "submitter", "project", None, (422,)),
    Row("get_files", "GET", f"/v1/projects/{{p}}/files/{NO_BLOB}", "viewer", "project", None, (404,)),
    Row("read_blob", "GET", f"/v1/projects/{{p}}/blobs/{NO_BLOB}", "viewer", "project", None, (404,)),
    Row("list_named_files", "GET", "/v1/projects/{p}/named-files", "viewer", "project"),
    Row("get_named_files", "GET", "/v1/projects/{p}/named-files/none", "viewer", "project", None, (404,)),
    Row("set_named_files", "PUT", "/v1/projects/{p}/named-files/{x}", "submitter", "project",
        {"digest": NO_BLOB}, (404,)),
    Row("delete_named_files", "DELETE", "/v1/projects/{p}/named-files/none", "submitter", "project", None, (404,)),
    Row("link_files", "POST", "/v1/projects/{p}/files/links", "viewer", "project", {"digests": []}),
    Row("read_contents", "POST", "/v1/projects/{p}/files/contents", "viewer", "project", {"digests": []}),
    Row("list_caches", "GET", "/v1/projects/{p}/cache", "viewer", "project"),
    Row("delete_caches", "POST", "/v1/projects/{p}/cache/delete", "submitter", "project", {"all": True}),
    Row("get_blob_keys", "GET", "/v1/blobs/credentials", "admin", "all"),
    Row("set_blob_keys", "PUT", "/v1/blobs/credentials", "admin", "all",
        {"access_key": "a", "secret_key": "b"}, (409,)),
    Row("remove_blob_keys", "DELETE", "/v1/blobs/credentials", "admin", "all", None, (404,)),
    Row("read_log", "GET", "/v1/workloads/{p}/job/instances/0/log", "viewer", "project"),
    Row("log_lines", "GET", "/v1/workloads/{p}/job/instances/0/log/lines", "viewer", "project"),
    Row("follow_log", "GET", "/v1/workloads/{p}/job/instances/0/log/follow", "viewer", "project"),
    Row("changes", "GET", "/v1/changes", "viewer", "some"),
    Row("history", "GET", "/v1/history", "viewer", "some", None, NO_HISTORY),
    Row("moment", "GET", "/v1/history/at", "viewer", "some", None, NO_HISTORY),
    Row("get_history", "GET", "/v1/history/{p}/job", "viewer", "project", None, NO_HISTORY),
    Row("history_instances", "GET", "/v1/history/{p}/job/1/instances", "viewer", "project", None, NO_HISTORY),
    Row("events", "GET", "/v1/events", "viewer", "some", None, NO_HISTORY),
    Row("follow_events", "GET", "/v1/events/follow?since=0", "viewer", "some", None, NO_HISTORY),
    Row("list_nodes", "GET", "/v1/nodes", "viewer", "some"),
    Row("get_node", "GET", "/v1/nodes/{n}", "viewer", "some"),
    Row("drain", "POST", "/v1/nodes/{n}/drain", "operator", "all", {}),
    Row("cordon", "POST", "/v1/nodes/{n}/cordon", "operator", "all"),
    Row("drain", "POST", "/v1/nodes/{n}/drain?dry_run=true", "operator", "all", {}),
    Row("uncordon", "POST", "/v1/nodes/{n}/uncordon", "operator", "all"),
    Row("remove", "DELETE", "/v1/nodes/{n}", "operator", "all", None, (204, 409)),
    Row("list_pools", "GET", "/v1/pools", "viewer", "some"),
    Row("get_pool", "GET", "/v1/pools/default", "viewer", "some"),
    Row("set_pool", "PUT", "/v1/pools/{x}", "operator", "all", {"strategy": "best_fit"}),
    Row("mark_pool", "PUT", "/v1/pools/{s}/status", "operator", "all", {"status": "failed", "reason": "y"}),
    Row("unset_pool", "DELETE", "/v1/pools/{s}", "operator", "all", None, (204,)),
    Row("list_projects", "GET", "/v1/projects", "viewer", "some"),
    Row("get_project", "GET", "/v1/projects/{p}", "viewer", "project"),
    Row("set_project", "PUT", "/v1/projects/{p}", "operator", "all", {"weight": 2}),
    Row("unset_project", "DELETE", "/v1/projects/{p}", "operator", "all", None, (204,)),
    Row("list_reservations", "GET", "/v1/reservations", "viewer", "some"),
    Row("get_reservation", "GET", "/v1/reservations/{p}", "viewer", "hidden"),
    Row("reserve", "POST", "/v1/reservations", "operator", "all",
        {"name": "{x}", "project": "{p}", "nodes": ["{n}"], "start": "20d"}, (201,)),
    Row("cancel_reservation", "DELETE", "/v1/reservations/{p}", "operator", "all", None, (204,)),
    Row("whoami", "GET", "/v1/whoami", "viewer", "some"),
    Row("list_tokens", "GET", "/v1/tokens", "admin", "some"),
    Row("get_token", "GET", "/v1/tokens/of-{p}", "admin", "hidden"),
    Row("create_token", "POST", "/v1/tokens", "admin", "named",
        {"name": "{x}-{p}", "role": "admin", "projects": ["{p}"]}, (201,)),
    Row("rotate_token", "POST", "/v1/tokens/of-{p}/rotate", "admin", "hidden", {}),
    Row("revoke_token", "DELETE", "/v1/tokens/of-{p}", "admin", "hidden", None, (204,)),
    Row("list_members", "GET", "/v1/projects/{p}/members", "admin", "project"),
    Row("set_member", "PUT", "/v1/projects/{p}/members/bob@example.com", "admin", "project", {"role": "admin"}),
    Row("remove_member", "DELETE", "/v1/projects/{p}/members/ann@example.com", "admin", "project", None, (204,)),
    Row("revoke_server_certificates", "POST", "/v1/servers/certificates/revoke", "admin", "all", None, (409,)),
    Row("list_secrets", "GET", "/v1/projects/{p}/secrets", "viewer", "project"),
    Row("set_secret", "PUT", "/v1/projects/{p}/secrets/{x}", "operator", "project", {"value": "v"}),
    Row("remove_secret", "DELETE", "/v1/projects/{p}/secrets/key", "operator", "project", None, (204,)),
    Row("reseal_secrets", "POST", "/v1/secrets/reseal", "admin", "all"),
    Row("backup", "GET", "/v1/backup", "admin", "all"),
    Row("list_servers", "GET", "/v1/servers", "viewer", "some"),
    Row("transfer_leader", "POST", "/v1/leader/transfer", "operator", "all", {}, (409,)),
    Row("list_secrets", "GET", "/v1/projects/{p}/secrets", "viewer", "project"),
    Row("set_secret", "PUT", "/v1/projects/{p}/secrets/{x}", "operator", "project", {"value": "y"}),
    Row("remove_secret", "DELETE", "/v1/projects/{p}/secrets/{x}", "operator", "project", None, (404,)),
    Row("reseal_secrets", "POST", "/v1/secrets/reseal", "admin", "all"),
    Row("list_hooks", "GET", "/v1/hooks", "operator", "some"),
    Row("get_hook", "GET", "/v1/projects/{p}/hooks/ends", "operator", "project"),
    Row("set_hook", "PUT", "/v1/projects/{p}/hooks/{x}", "operator", "project", {"url": "https://h.example/"}),
    Row("remove_hook", "DELETE", "/v1/projects/{p}/hooks/ends", "operator", "project", None, (204,)),
    Row("test_hook", "POST", "/v1/projects/{p}/hooks/ends/test", "operator", "project"),
    Row("audit", "GET", "/v1/audit", "operator", "all"),
    Row("status", "GET", "/v1/status", "viewer", "some"),
    Row("get_maintenance", "GET", "/v1/maintenance", "viewer", "some"),
    Row("begin_maintenance", "PUT", "/v1/maintenance", "operator", "all", {"reason": "y"}),
    Row("end_maintenance", "DELETE", "/v1/maintenance", "operator", "all"),
    Row("metrics", "GET", "/metrics", "viewer", "all"),
    Row("create_join_token", "POST", "/v1/join-tokens", "operator", "all", {}, (201, 503)),
    Row("list_join_tokens", "GET", "/v1/join-tokens", "operator", "all", None, (200, 503)),
    Row("revoke_join_token", "DELETE", "/v1/join-tokens/{x}", "operator", "all", None, (404, 503)),
]  # fmt: skip
CALLERS = [(role, place) for place in ("own", "*") for role in ROLES]


@pytest.fixture(scope="module")
async def made(anyio_backend: str) -> AsyncIterator[InprocessServer]:
    """One server for all: all callers bring projects, a node and names of their own."""
    async with quiet_server() as server:
        yield server


class Scene(NamedTuple):
    """What one test has for itself."""

    own: str
    foreign: str
    node: str
    name: str
    is_set: str  # a pool that has settings


async def scene(made: InprocessServer, operation: str = "") -> Scene:
    number = next(NUMBERS)
    found = Scene(f"own{number}", f"foreign{number}", f"n{number}", f"x{number}", f"s{number}")
    await made.client.delete("/v1/maintenance")  # an earlier test may have begun some
    await made.agent(found.node)
    assert (await made.client.put(f"/v1/pools/{found.is_set}", json={"strategy": "best_fit"})).status_code == 200
    for project in (found.own, found.foreign):
        assert (await made.client.put(f"/v1/projects/{project}", json={"weight": 1})).status_code == 200
        await made.submit("job", project=project)
        if "reserv" in operation:  # of these and of hooks there may be fewer than there are rows and roles
            start, end = ("8d", "9d") if project == found.own else ("10d", "11d")
            stored = {"name": project, "project": project, "nodes": [found.node], "start": start, "end": end}
            await made.post("/v1/reservations", stored, expect=201)
        await made.post("/v1/tokens", {"name": f"of-{project}", "role": "viewer", "projects": [project]}, expect=201)
        path = f"/v1/projects/{project}"
        assert (await made.client.put(f"{path}/members/ann@example.com", json={"role": "viewer"})).status_code == 200
        assert (await made.client.put(f"{path}/secrets/key", json={"value": "v"})).status_code == 200
        template = {"workload": {"command": "y"}}
        if "template" in operation or operation == "submit":
            assert (await made.client.put(f"/v1/templates/{project}/train", json=template)).status_code == 200
        if "hook" in operation:
            hook = {"url": "http://127.0.0.1:9/"}  # a closed port: a permitted caller gets its error
            assert (await made.client.put(f"{path}/hooks/ends", json=hook)).status_code == 200
    return found


def expected(row: Row, role: str, place: str, is_own: bool) -> tuple[int, ...]:
    """The rule in short: 404 for what is foreign and named, 403 where the role is too low, else it is done."""
    is_enough = ROLES.index(role) >= ROLES.index(row.role)
    if place == "*" or row.kind == "some":
        return row.done if is_enough else (403,)
    if row.kind == "all":
        return (403,)
    if is_own:
        return row.done if is_enough else (403,)
    if row.kind == "hidden":
        return (404,) if is_enough else (403,)
    return (403,) if row.kind == "named" else (404,)


def filled(value: Any, scene: Scene, project: str) -> Any:
    """A path or a body for this scene."""
    if isinstance(value, str):
        for mark, word in (("{p}", project), ("{n}", scene.node), ("{x}", scene.name), ("{s}", scene.is_set)):
            value = value.replace(mark, word)
    elif isinstance(value, dict):
        value = {name: filled(inner, scene, project) for name, inner in value.items()}
    elif isinstance(value, list):
        value = [filled(inner, scene, project) for inner in value]
    return value


async def status(made: InprocessServer, principal: Caller, row: Row, path: str, body: Any) -> int:
    if row.name in ENDLESS:
        return await status_of(made, principal, row.method, path)
    answer = await principal(row.method, path, body)
    if answer.status_code == 403:
        assert answer.json()["code"] == "forbidden" and "role" in answer.json()["message"]
    return answer.status_code


@pytest.mark.parametrize(("role", "place"), CALLERS, ids=lambda value: str(value).replace("*", "everywhere"))
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
async def test_the_table(made: InprocessServer, row: Row, role: str, place: str) -> None:
    here = await scene(made, row.name)
    principal = await caller(made, role, here.own if place == "own" else "*")
    stored = {kind: dict(records) for kind, records in made.engine.state.opaque_records.items()}
    before = made.snapshot()
    for project in (here.foreign, here.own):
        path, body = filled(row.path, here, project), filled(row.body, here, project)
        found = await status(made, principal, row, path, body)
        assert found in expected(row, role, place, project == here.own), (path, found)
        if found in (403, 404) and found not in row.done:
            assert made.snapshot() == before and made.engine.state.opaque_records == stored
        elif row.kind == "all":
            return  # it is done once: there is one node, one pool


@pytest.mark.parametrize(
    "row", [row for row in TABLE if row.body is not None and row.role != "viewer"], ids=lambda row: row.name
)
async def test_a_role_is_checked_before_a_body_is_read(made: InprocessServer, row: Row) -> None:
    here = await scene(made, row.name)
    principal = await caller(made, "viewer", "*")
    for nonsense in ({"nonsense": 1}, ["nonsense"]):
        assert await status(made, principal, row, filled(row.path, here, here.own), nonsense) == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/v1/projects/*/hooks/x"), ("DELETE", "/v1/projects/*/hooks/x"), ("POST", "/v1/projects/*/hooks/x/test")],
)
async def test_hooks_of_all_projects_are_for_admins_before_a_body_is_read(
    made: InprocessServer, method: str, path: str
) -> None:
    operator, admin = await caller(made, "operator", "*"), await caller(made, "admin", "*")
    assert (await operator(method, path, {"nonsense": 1})).status_code == 403
    assert (await admin(method, path, {"nonsense": 1})).status_code == (422 if method == "PUT" else 404)


async def test_every_operation_has_an_entry_and_a_row(made: InprocessServer) -> None:
    found = operations(made.api.routes)
    assert len(found) > 40
    assert set(found) - set(BY_NAME) == set(), "what has no entry is for admins of everything only"
    assert set(found) - {row.name for row in TABLE} - OPEN - {"options"} == set(), "add a row to the table above"
    assert {name for name, item in found.items() if item.scope is Scope.OPEN} == OPEN


async def test_an_operation_that_was_forgotten_is_for_admins_of_everything() -> None:
    @get("/forgotten", operation_id="forgotten")
    async def forgotten() -> None: ...

    (route,) = (item for item in Litestar([forgotten]).routes if item.path == "/forgotten")
    assert operations([route])["forgotten"] == STRICTEST == Rule(ADMIN, Scope.ALL, True)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/leader"])
async def test_probes_need_no_token(made: InprocessServer, path: str) -> None:
    assert (await made.client.get(path, headers={"authorization": "nonsense"})).status_code == 200


async def test_the_description_and_the_methods_are_for_all_known_callers(made: InprocessServer) -> None:
    principal = await caller(made, "viewer", "own")
    assert (await principal("GET", "/schema/openapi.json")).status_code == 200
    assert (await principal("OPTIONS", "/v1/nodes/n1")).status_code == 204
    assert (await principal("OPTIONS", "/v1/status")).status_code == 204
