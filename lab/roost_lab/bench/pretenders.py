"""Agents over real gRPC that only pretend to run their orders: a thousand fit on one machine.

`python -m roost_lab.bench.pretenders HOST:PORT JOIN-TOKEN FIRST COUNT BEAT-S` lets COUNT of them join and stay
connected, with a heartbeat every BEAT-S seconds; 0: as often as their lease asks for.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import uvloop

from roost.agent.actor import Actor, Halt, Start
from roost.agent.connection.enrolment import join
from roost.agent.connection.identity import NodeIdentity, credentials_of
from roost.agent.connection.machine import BEATS_PER_LEASE
from roost.agent.connection.stream import OPTIONS
from roost.model.protocol import Answer, Welcome
from roost.model.records.enrolment import Bundle, JoinToken, read_token
from roost.model.records.node import Facts
from roost.ports.driver import Ended
from roost.wire import agent_pb2_grpc
from roost.wire.codec import pack_agent, unpack_server

AGAIN_S_MIN, AGAIN_S_MAX = 0.1, 1.0  # before a pretender registers again
JOIN_AT_ONCE = 50
CERTIFICATES_AT_ONCE = 16
ROOM = {"cpu": 16_000, "memory": 1 << 36, "disk": 1 << 38}


async def main(address: str, token: str, first: int, count: int, beat_s: float) -> None:
    gate = asyncio.Semaphore(JOIN_AT_ONCE)
    connected = asyncio.Semaphore(0)
    bundles = await join_all(read_token(token), [f"node-{number:05}" for number in range(first, first + count)])
    async with asyncio.TaskGroup() as tasks:
        for bundle in bundles:
            tasks.create_task(_live(address, bundle, beat_s, gate, connected))
        for _ in bundles:
            await connected.acquire()
        print("connected", flush=True)


async def join_all(token: JoinToken, names: list[str]) -> list[Bundle]:
    """One certificate for each: requests at the same time share commits."""
    with tempfile.TemporaryDirectory(prefix="roost-pretenders-") as folder:

        def join_one(name: str) -> Bundle:
            os.mkdir(f"{folder}/{name}")
            return join(NodeIdentity(f"{folder}/{name}"), token, name)

        with ThreadPoolExecutor(CERTIFICATES_AT_ONCE) as threads:
            return list(threads.map(join_one, names))


@asynccontextmanager
async def welcomed(address: str, bundle: Bundle, room: dict[str, int]) -> AsyncIterator[tuple[Actor, Any]]:
    actor = Actor(bundle.name, bundle.name, Facts(room))
    async with grpc.aio.secure_channel(address, credentials_of(bundle), options=OPTIONS) as channel:
        stream = agent_pb2_grpc.AgentsStub(channel).Connect()
        await stream.write(pack_agent(actor.hello(now_ms())))
        welcome = unpack_server(await _read(stream))
        assert isinstance(welcome, Welcome), welcome
        actor.welcomed(welcome, now_ms())
        yield actor, stream


async def _read(stream: Any) -> Any:
    frame = await stream.read()
    if frame is grpc.aio.EOF:
        raise ConnectionResetError("the server has ended the stream")
    return frame


async def _live(
    address: str, bundle: Bundle, beat_s: float, gate: asyncio.Semaphore, connected: asyncio.Semaphore
) -> None:
    """Stay connected. When the server has gone, register again, each after a pause of its own."""
    while True:
        try:
            await _stay(address, bundle, beat_s, gate, connected)
        except* (grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError):
            await asyncio.sleep(random.uniform(AGAIN_S_MIN, AGAIN_S_MAX))


async def _stay(
    address: str, bundle: Bundle, beat_s: float, gate: asyncio.Semaphore, connected: asyncio.Semaphore
) -> None:
    async with AsyncExitStack() as stack:
        async with gate:
            actor, stream = await stack.enter_async_context(welcomed(address, bundle, ROOM))
        connected.release()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        event = asyncio.Event()
        tasks.create_task(_listen(stream, actor, event))
        while True:
            try:
                async with asyncio.timeout(beat_s or actor.lease_ms / 1_000 / BEATS_PER_LEASE):
                    await event.wait()
            except TimeoutError:
                pass
            event.clear()
            await stream.write(pack_agent(actor.beat(now_ms())))


async def _listen(stream: Any, actor: Actor, update: asyncio.Event) -> None:
    while True:
        answer = unpack_server(await _read(stream))
        assert isinstance(answer, Answer), answer
        now = now_ms()
        for action in actor.answered(answer, now):
            if isinstance(action, Start):
                actor.started(action.run.token, now, now)
                update.set()
            elif isinstance(action, Halt):
                actor.ended(Ended(str(action.token), "stopped", now, signal=15), now)
                update.set()


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
