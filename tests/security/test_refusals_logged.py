"""Every refusal leaves one line with the address, and none of them holds the secret that was tried."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from roost.server.http.api import errors
from roost.server.observability import logging
from tests.security.callers import caller, quiet_server

SECRET = "hunter2-hunter2-hunter2"
BODY = {"name": "x", "command": "true"}
JWT = f"eyJhbGciOiJub25lIn0.{SECRET}.x"


@pytest.mark.parametrize(
    ("method", "path", "shown", "body", "status"),
    [
        ("GET", "/v1/nodes", f"Bearer {SECRET}", None, 401),
        ("GET", "/v1/nodes", f"Bearer roost_ci_{SECRET}", None, 401),
        ("GET", "/v1/nodes", f"Bearer {JWT}", None, 401),
        ("GET", "/v1/nodes", f"Basic {SECRET}", None, 401),
        ("GET", f"/v1/nodes?token={SECRET}", "", None, 401),
        ("POST", "/v1/workloads", f"bearer  {SECRET}", BODY, 401),
        ("POST", "/v1/join", "", {"id": "0123456789", "secret": SECRET, "node": "n1", "request": "x"}, 401),
        ("PUT", "/v1/projects/web/secrets/key", "viewer", {"value": SECRET}, 403),
        ("POST", "/v1/tokens", "viewer", {"name": SECRET, "role": "admin", "projects": ["*"]}, 403),
        ("POST", "/v1/workloads", "viewer", {**BODY, "project": "web", "env": {"X": SECRET}}, 403),
    ],
    ids=["a token", "an API token", "an identity", "a password", "in the address", "spaces", "a join token",
         "setting a secret", "making a token", "a document"],
)  # fmt: skip
async def test_a_line_with_the_address_and_without_the_secret(
    method: str, path: str, shown: str, body: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "refused", logging.RateLimitedLogger("api"))
    async with quiet_server() as made:
        principal = await caller(made, "viewer", "web")
        before, stored = made.snapshot(), {kind: dict(all) for kind, all in made.engine.state.opaque_records.items()}
        headers = principal.headers if shown == "viewer" else {"authorization": shown}
        with capture_logs() as report:
            answer = await made.client.request(method, path, json=body, headers=headers)
        assert answer.status_code == status, answer.text
        (line,) = (item for item in report if "refused" in item["event"])
        assert line.get("where", line.get("address")) == "127.0.0.1"
        assert SECRET not in str(report) and SECRET not in answer.text
        assert made.snapshot() == before and made.engine.state.opaque_records == stored


def test_a_line_moves_no_cursor() -> None:
    """The operator's terminal is not to be written to by the caller that asks for a strange path."""
    answer = logging._render_text(None, "warning", {"event": "request refused", "path": "/\x1b[2J\r\n\x9b31m\u202ex"})
    assert answer.decode().endswith("path=/\\x1b[2J\\r\\n\\x9b31m\\u202ex")


async def test_a_scanner_fills_no_disk() -> None:
    async with quiet_server() as made:
        with capture_logs() as answer:
            for _ in range(5 * logging.LINES_MAX):
                await made.client.get("/v1/nodes", headers={"authorization": f"Bearer {SECRET}"})
        assert len([item for item in answer if item["event"] == "request refused"]) == logging.LINES_MAX
