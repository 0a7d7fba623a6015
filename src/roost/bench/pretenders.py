"""Agents over real gRPC that only pretend to run what they are given: a thousand fit on one machine.

`python -m roost.bench.pretenders HOST:PORT JOIN-TOKEN FIRST COUNT` lets COUNT of them join and keeps them connected.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import uvloop

from roost.agent.actor import Actor, Halt, Start
from roost.agent.identity import Identity, credentials_of
from roost.agent.joining import join
from roost.agent.link import OPTIONS
from roost.model.frames import Answer, Welcome
from roost.model.joining import Bundle, JoinToken, read_token
from roost.model.node import Facts
from roost.wire import agent_pb2_grpc
from roost.wire.codec import pack_agent, unpack_server

BEAT_S = 1.0
JOIN_AT_ONCE = 50
CERTIFICATES_AT_ONCE = 16


async def main(address: str, token: str, first: int, count: int) -> None:
    """Connect all, say so, and beat until killed."""
    gate = asyncio.Semaphore(JOIN_AT_ONCE)
    connected = asyncio.Event()
    left = [count]
    names = [f"node-{number:05}" for number in range(first, first + count)]
    bundles = await _join_all(read_token(token), names)

    def one_more() -> None:
        left[0] -= 1
        if not left[0]:
            connected.set()

    async with asyncio.TaskGroup() as tasks:
        for bundle in bundles:
            tasks.create_task(_live(address, bundle, gate, one_more))
        await connected.wait()
        print("connected", flush=True)


async def _join_all(token: JoinToken, names: list[str]) -> list[Bundle]:
    """One certificate for each: they share commits when several ask at once."""
    with tempfile.TemporaryDirectory(prefix="roost-pretenders-") as folder:

        def join_one(name: str) -> Bundle:
            os.mkdir(f"{folder}/{name}")
            return join(Identity(f"{folder}/{name}"), token, name)

        with ThreadPoolExecutor(CERTIFICATES_AT_ONCE) as threads:
            return list(threads.map(join_one, names))


async def _live(address: str, bundle: Bundle, gate: asyncio.Semaphore, joined: Callable[[], None]) -> None:
    name = bundle.name
    actor = Actor(name, name, Facts({"cpu": 16_000, "memory": 1 << 36, "disk": 1 << 38}))
    async with grpc.aio.secure_channel(address, credentials_of(bundle), options=OPTIONS) as channel:
        await gate.acquire()
        stream = agent_pb2_grpc.AgentsStub(channel).Connect()  # type: ignore[no-untyped-call]
        await stream.write(pack_agent(actor.hello(_now_ms())))
        welcome = unpack_server(await stream.read())
        assert isinstance(welcome, Welcome), welcome
        actor.welcomed(welcome, _now_ms())
        gate.release()
        joined()
        news = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_listen(stream, actor, news))
            while True:
                try:
                    async with asyncio.timeout(BEAT_S):
                        await news.wait()
                except TimeoutError:
                    pass
                news.clear()
                await stream.write(pack_agent(actor.beat(_now_ms())))


async def _listen(stream: Any, actor: Actor, news: asyncio.Event) -> None:
    """Start at once whatever is ordered, and say so soon; stop at once what is to stop."""
    while True:
        answer = unpack_server(await stream.read())
        assert isinstance(answer, Answer), answer
        now = _now_ms()
        for action in actor.answered(answer, now):
            if isinstance(action, Start):
                actor.started(action.run.token, now, now)
                news.set()
            elif isinstance(action, Halt):
                actor.ended(action.token, "stopped", None, 15, 0, "", now, now)
                news.set()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
