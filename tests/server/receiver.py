"""A receiver: a little HTTP server on loopback that remembers its requests, and answers as a test wishes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from roost.model.records.webhook import Command
from roost.server.pki.encryption import Seal
from roost.server.webhooks.channel import RetryTiming
from roost.server.webhooks.destinations import Destinations
from roost.server.webhooks.dispatcher import Hooks
from tests.server.inprocess_server import KEY, InprocessServer

QUICK = RetryTiming(first_ms=10, pause_ms_max=40)
DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


class Reported(NamedTuple):
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return json.loads(self.body)


Answers = Callable[[Reported], bytes]


def status(code: int, more: str = "") -> bytes:
    """An answer without a body."""
    return f"HTTP/1.1 {code} Words\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()


OK = status(204)


class Receiver:
    """Its requests, oldest first. `gate` closed: it takes requests and does not answer."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.reported: list[Reported] = []
        self.at_once = self.at_once_most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Its requests with those names; without any, everything."""
        return [
            other_answer.event for other_answer in self.reported if not names or other_answer.event["event"] in names
        ]

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await asyncio.sleep(0.002)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.at_once += 1
        self.at_once_most = max(self.at_once, self.at_once_most)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            report = Reported(headers, await reader.readexactly(int(headers["content-length"])))
            self.reported.append(report)
            await self.gate.wait()
            writer.write(self.answers(report))
            await writer.drain()
        except (OSError, EOFError):
            pass  # the client that asked has gone
        finally:
            self.at_once -= 1
            writer.close()


@asynccontextmanager
async def receiver(answers: Answers = lambda answer: OK, port: int = 0) -> AsyncIterator[Receiver]:
    """A receiver that listens as long as the block."""
    made = Receiver(answers)
    server = await asyncio.start_server(made.serve, "127.0.0.1", port)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/told"
    try:
        yield made
    finally:
        made.gate.set()
        server.close()


@asynccontextmanager
async def telling(made: InprocessServer) -> AsyncIterator[None]:
    """The hooks of a server run, as long as the block."""
    running = asyncio.ensure_future(made.hooks.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.hooks.close()


def equip(made: InprocessServer, *commands: Command, timing: RetryTiming = QUICK, **fields: Any) -> None:
    """Hooks for a server, other than its own: they try again soon, and forget nothing."""
    made.hooks = Hooks(
        made.engine,
        commands,
        destinations=Destinations(["public", "127.0.0.0/8"]),
        timing=timing,
        store_s=0.0,
        **fields,
    )
    made.hooks.seal = Seal(KEY)
    made.perform.hooks = made.hooks
    made.context = made.dispatcher.context = made.context._replace(hooks=made.hooks)


async def set_hook(made: InprocessServer, key: str, url: str, expect: int = 200, **fields: Any) -> dict[str, Any]:
    """Set a hook that is taken in, or refused."""
    project, _, name = key.rpartition("/")
    answer = await made.client.put(f"/v1/projects/{project}/hooks/{name}", json={"url": url, **fields})
    assert answer.status_code == expect, answer.text
    return answer.json()


async def hook_of(made: InprocessServer, key: str) -> dict[str, Any]:
    """A hook as it stands."""
    project, _, name = key.rpartition("/")
    return await made.get(f"/v1/projects/{project}/hooks/{name}")
