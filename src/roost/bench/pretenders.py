"""Agents over real gRPC that only pretend to run what they are given: a thousand fit on one machine.

`python -m roost.bench.pretenders HOST:PORT TOKEN FIRST COUNT` keeps COUNT of them connected.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import uvloop

from roost.agent.actor import Actor, Halt, Start
from roost.agent.link import OPTIONS
from roost.model.frames import Answer, Welcome
from roost.model.node import Facts
from roost.wire import agent_pb2_grpc
from roost.wire.codec import pack_agent, unpack_server

BEAT_S = 1.0
JOIN_AT_ONCE = 50


async def main(address: str, token: str, first: int, count: int) -> None:
    """Connect all, say so, and beat until killed."""
    gate = asyncio.Semaphore(JOIN_AT_ONCE)
    connected = asyncio.Event()
    left = [count]

    def one_more() -> None:
        left[0] -= 1
        if not left[0]:
            connected.set()

    async with asyncio.TaskGroup() as tasks:
        for number in range(first, first + count):
            tasks.create_task(_live(address, token, f"node-{number:05}", gate, one_more))
        await connected.wait()
        print("connected", flush=True)


async def _live(address: str, token: str, name: str, gate: asyncio.Semaphore, joined: Callable[[], None]) -> None:
    actor = Actor(name, name, Facts({"cpu": 16_000, "memory": 1 << 36, "disk": 1 << 38}))
    options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        await gate.acquire()
        metadata = (("authorization", f"Bearer {token}"),)
        stream = agent_pb2_grpc.AgentsStub(channel).Connect(metadata=metadata)  # type: ignore[no-untyped-call]
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
