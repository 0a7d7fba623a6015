"""Callers of a server in this process: tokens of every role, with projects of their own and foreign ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx

from roost.server.auth.tokens import decode_token
from tests.server.inprocess_server import InprocessServer, inprocess_server

LEASE_MS = 600_000  # nodes without an agent must not be lost meanwhile
NUMBERS = count()


class Caller:
    """A caller with a token."""

    def __init__(self, made: InprocessServer, name: str, token: str) -> None:
        self.made = made
        self.name = name
        self.token = token
        self.headers = {"authorization": f"Bearer {token}"}

    async def __call__(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Ask."""
        return await self.made.client.request(method, path, json=body, headers=self.headers)

    async def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Ask with a body or a query of any kind."""
        return await self.made.client.request(method, path, headers=self.headers, **more)

    async def get(self, path: str, expect: int = 200, **query: Any) -> Any:
        """What is at a path."""
        answer = await self.made.client.get(path, params=query, headers=self.headers)
        assert answer.status_code == expect, answer.text
        return answer.json()


@asynccontextmanager
async def quiet_server(**settings: Any) -> AsyncIterator[InprocessServer]:
    """A server without timers: only the test makes changes."""
    async with inprocess_server(lease_ms=LEASE_MS, **settings) as made:
        yield made


async def caller(made: InprocessServer, role: str, *projects: str, **fields: Any) -> Caller:
    """A caller with a new token that has been used, so that its use is written down and changes nothing later."""
    name = f"token-{next(NUMBERS)}"
    body = {"name": name, "role": role, "projects": list(projects), **fields}
    found = Caller(made, name, (await made.post("/v1/tokens", body, expect=201))["token"])
    await found.get("/v1/whoami")
    await made.until(lambda: decode_token(made.engine.state.opaque_records["token"][name]).used_ms)
    await made.engine.settled()
    return found


async def status_of(made: InprocessServer, principal: Caller, method: str, path: str) -> int:
    """The status of an answer that may have no end: the caller that asks leaves as soon as it begins."""
    status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    path, _, query = path.partition("?")
    headers = [(b"host", b"roost"), (b"authorization", principal.headers["authorization"].encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode(), "headers": headers,
        "client": ("192.0.2.7", 1), "server": ("roost", 80), "state": {},
    }  # fmt: skip

    async def receive() -> Any:
        await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            status.set_result(message["status"])

    answering = asyncio.ensure_future(made.door(scope, receive, send))
    try:
        async with asyncio.timeout(10):
            return await status
    finally:
        answering.cancel()
        await asyncio.wait({answering})
