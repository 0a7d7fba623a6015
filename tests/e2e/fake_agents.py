"""Agents over real gRPC that pretend to run what they are given, in the loop of a test. Each can be killed alone."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from roost_lab.bench.pretenders import join_all

from roost.agent.actor import Action, Actor, Halt, Start
from roost.agent.connection.identity import credentials_of
from roost.agent.connection.stream import OPTIONS
from roost.model.protocol import Answer, Run, Welcome
from roost.model.records.enrolment import Bundle, read_token
from roost.model.records.node import Facts
from roost.ports.driver import Ended
from roost.wire import agent_pb2_grpc
from roost.wire.codec import pack_agent, unpack_server

BEAT_S = 0.5
ROOM = {"cpu": 16_000, "memory": 1 << 36, "disk": 1 << 38}


class FakeAgent:
    """Nodes of a real server. `breaks` says which runs end as soon as they have started."""

    def __init__(self, address: str, breaks: Callable[[Run], bool]) -> None:
        self._address = address
        self._breaks = breaks
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._bundles: dict[str, Bundle] = {}
        self._life = 0

    async def join(self, token: str, names: list[str]) -> None:
        """Let them join, and connect all of them."""
        bundles = await join_all(read_token(token), names)
        self._bundles = {bundle.name: bundle for bundle in bundles}
        for name in names:
            await self.start(name)

    async def start(self, name: str) -> None:
        """A node says hello, for the first time or in another life."""
        self._life += 1
        welcomed = asyncio.Event()
        self._lives[name] = asyncio.create_task(self._live(self._bundles[name], self._life, welcomed))
        async with asyncio.timeout(30):
            await welcomed.wait()

    async def kill(self, name: str) -> None:
        """It is gone without a word, and all that ran there."""
        task = self._lives.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def end(self) -> None:
        for name in list(self._lives):
            await self.kill(name)

    async def _live(self, bundle: Bundle, life: int, welcomed: asyncio.Event) -> None:
        actor = Actor(bundle.name, f"machine-{bundle.name}/{life}", Facts(ROOM))
        async with grpc.aio.secure_channel(self._address, credentials_of(bundle), options=OPTIONS) as channel:
            stream = agent_pb2_grpc.AgentsStub(channel).Connect()  # type: ignore[no-untyped-call]
            await stream.write(pack_agent(actor.hello(_now_ms())))
            welcome = unpack_server(await stream.read())
            assert isinstance(welcome, Welcome), welcome
            event = asyncio.Event()
            self._do(actor, actor.welcomed(welcome, _now_ms()), event)
            welcomed.set()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(stream, actor, event))
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(BEAT_S):
                            await event.wait()
                    event.clear()
                    await stream.write(pack_agent(actor.beat(_now_ms())))

    async def _listen(self, stream: Any, actor: Actor, update: asyncio.Event) -> None:
        while True:
            answer = unpack_server(await stream.read())
            assert isinstance(answer, Answer), answer
            self._do(actor, actor.answered(answer, _now_ms()), update)

    def _do(self, actor: Actor, actions: list[Action], update: asyncio.Event) -> None:
        """Start at once whatever is ordered, stop at once what is to stop, and say so soon."""
        now = _now_ms()
        for action in actions:
            if isinstance(action, Start):
                actor.started(action.run.token, now, now)
                if self._breaks(action.run):
                    actor.ended(Ended(str(action.run.token), "exited", now, 1), now)
                update.set()
            elif isinstance(action, Halt):
                actor.ended(Ended(str(action.token), "stopped", now, signal=15), now)
                update.set()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
