"""A receiver: a little HTTP server on loopback that remembers what it is told, and answers as a test wishes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from roost.model.hook import Command
from roost.server.hooks import Hooks
from roost.server.hooks_channel import Timing
from roost.server.seal import Seal
from tests.server.house import KEY, House

QUICK = Timing(first_ms=10, pause_ms_max=40)
DEADLINE_S = 20.0


class Told(NamedTuple):
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return json.loads(self.body)


Answers = Callable[[Told], bytes]


def status(code: int, more: str = "") -> bytes:
    """An answer without a body."""
    return f"HTTP/1.1 {code} Words\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()


OK = status(204)


class Receiver:
    """What it was told, oldest first. `gate` closed: it takes requests and does not answer."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.told: list[Told] = []
        self.at_once = self.at_once_most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What it was told by those names; without any, everything."""
        return [each.event for each in self.told if not names or each.event["event"] in names]

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
            told = Told(headers, await reader.readexactly(int(headers["content-length"])))
            self.told.append(told)
            await self.gate.wait()
            writer.write(self.answers(told))
            await writer.drain()
        except (OSError, EOFError):
            pass  # whoever asked has gone
        finally:
            self.at_once -= 1
            writer.close()


@asynccontextmanager
async def receiver(answers: Answers = lambda told: OK, port: int = 0) -> AsyncIterator[Receiver]:
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
async def telling(made: House) -> AsyncIterator[None]:
    """The hooks of a house are told, as long as the block."""
    running = asyncio.ensure_future(made.hooks.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.hooks.close()


def equip(made: House, *commands: Command, timing: Timing = QUICK, **fields: Any) -> None:
    """Hooks for a house, other than its own: they try again soon, and forget nothing."""
    made.hooks = Hooks(made.engine, commands, to_loopback=True, timing=timing, store_s=0.0, **fields)
    made.hooks.begin(Seal(KEY))
    made.perform.hooks = made.hooks
    made.api.state["doors"] = made.api.state["doors"]._replace(hooks=made.hooks)


async def set_hook(made: House, key: str, url: str, expect: int = 200, **fields: Any) -> dict[str, Any]:
    """Set a hook that is taken in, or refused."""
    project, _, name = key.rpartition("/")
    answer = await made.client.put(f"/v1/projects/{project}/hooks/{name}", json={"url": url, **fields})
    assert answer.status_code == expect, answer.text
    return answer.json()


async def hook_of(made: House, key: str) -> dict[str, Any]:
    """A hook as it stands."""
    project, _, name = key.rpartition("/")
    return await made.get(f"/v1/projects/{project}/hooks/{name}")
