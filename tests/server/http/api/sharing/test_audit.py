"""The audit log: what changed and on whose request, what was refused, and who took a backup."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from roost.core.state.records import Settings
from roost.model.records.opaque import OPAQUE_KINDS
from roost.server.history import service
from roost.server.history.service import History
from tests.security.callers import caller
from tests.server.inprocess_server import InprocessServer, inprocess_server


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[InprocessServer]:
    async with inprocess_server(history=History(tmp_path, Settings()), lease_ms=600_000) as server:
        yield server


async def entries(made: InprocessServer, **wanted: Any) -> list[tuple[str, str, str]]:
    found = (await made.get("/v1/audit", **wanted))["items"]
    return [(item["what"], item["target"], item.get("detail", "")) for item in found]


async def test_roles_that_are_given_and_taken_are_named_with_the_one_before(made: InprocessServer) -> None:
    path = "/v1/projects/web/members/ann@example.com"
    for role in ("viewer", "admin"):
        assert (await made.client.put(path, json={"role": role})).status_code == 200
    assert (await made.client.delete(path)).status_code == 204
    member = "member web/ann@example.com"
    assert await entries(made) == [
        ("putrecords", f"{member} (gone)", "had role admin"),
        ("putrecords", member, "role admin, before viewer"),
        ("putrecords", member, "role viewer"),
    ]


async def test_tokens_are_named_with_their_role_and_projects(made: InprocessServer) -> None:
    body = {"name": "ci", "role": "submitter", "projects": ["web", "db"]}
    await made.post("/v1/tokens", body, expect=201)
    await made.post("/v1/tokens/ci/rotate", {})
    assert (await made.client.delete("/v1/tokens/ci")).status_code == 204
    assert await entries(made) == [
        ("putrecords", "token ci (gone)", "had role submitter in web, db"),
        ("putrecords", "token ci", "a new secret"),
        ("putrecords", "token ci", "role submitter in web, db"),
    ]


async def test_settings_are_shown_before_and_after(made: InprocessServer) -> None:
    for weight in (2, 5):
        assert (await made.client.put("/v1/projects/web", json={"weight": weight})).status_code == 200
    newest, oldest = await entries(made)
    assert newest == ("setproject", "project web", "weight 5, before 2")
    assert oldest[2].startswith("weight 2")


async def test_refused_requests_and_backups_are_in_it(made: InprocessServer) -> None:
    who = await caller(made, "viewer", "web")
    revision = made.engine.state.revision
    assert (await who("POST", "/v1/nodes/n1/drain", {})).status_code == 403
    assert (await who("POST", "/v1/workloads", {"name": "x", "project": "web", "command": "y"})).status_code == 403
    assert (await made.client.get("/v1/backup")).status_code == 200
    assert made.engine.state.revision == revision, "a refused request changes nothing"
    found = (await made.get("/v1/audit", limit=3))["items"]
    assert [(item["what"], item["who"], item.get("refused", False)) for item in found] == [
        ("backup", "root", False),
        ("submit", f"token:{who.name}", True),
        ("drain", f"token:{who.name}", True),
    ]
    assert "this needs the role operator" in found[2]["detail"]
    assert len((await made.get("/v1/audit", who=who.name))["items"]) == 2


async def test_it_is_no_ring(made: InprocessServer) -> None:
    for number in range(OPAQUE_KINDS["audit"] + 5):
        assert (await made.client.put("/v1/projects/web", json={"weight": 1 + number % 9})).status_code == 200
    page = await made.get("/v1/audit", limit=1_000)
    rest = await made.get("/v1/audit", limit=1_000, after=page["next"])
    assert len(page["items"]) + len(rest["items"]) == OPAQUE_KINDS["audit"] + 5 and rest["next"] is None
    numbers = [item["number"] for item in (*page["items"], *rest["items"])]
    assert numbers == sorted(numbers, reverse=True)


async def test_a_client_that_is_refused_in_a_loop_does_not_fill_it(
    made: InprocessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "NOTES_MAX", 3)
    who = await caller(made, "viewer", "web")
    for _ in range(10):
        assert (await who("POST", "/v1/nodes/n1/drain", {})).status_code == 403
    found = await entries(made, what="drain")
    assert len(found) == 3 and "are not listed" in found[0][2]
