"""Whatever happens to its streams, the server gets every byte of a log, once and in order."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from roost.agent.logs import machine
from roost.agent.logs.machine import ReadFile
from roost.agent.logs.spool import Spool
from roost.agent.prepare import log_file
from roost.wire import agent_pb2 as pb

NAME = "default/job/1/0.1"
DEADLINE_S = 10.0


class Server:
    """Keeps what follows on what it has, and says how much that is. Some streams break before or after an answer."""

    def __init__(self, breaks: Sequence[str]) -> None:
        self.data = b""
        self._breaks = list(breaks)

    def open(self) -> Any:
        return Stream(self)

    def take(self, batch: pb.LogChunks) -> bytes:
        how = self._breaks.pop(0) if self._breaks else ""
        if how == "before":
            raise ConnectionError("lost on its way")
        if how == "cancelled":  # gRPC's answer when the channel is closed during a call
            raise asyncio.CancelledError
        for chunk in batch.chunks:
            if chunk.data and chunk.offset == len(self.data):
                self.data += chunk.data
        if how == "after":
            raise ConnectionError("the answer was lost")
        return pb.LogSizes(
            sizes=[pb.LogSize(log=NAME, size=len(self.data), durable=len(self.data))]
        ).SerializeToString()


class Stream:
    """One stream of the spool to the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._batch = pb.LogChunks()

    async def write(self, data: bytes) -> None:
        self._batch = pb.LogChunks.FromString(data)

    async def read(self) -> Any:
        return self._server.take(self._batch)

    def cancel(self) -> None:
        pass


async def ship(writes: Sequence[bytes], server: Server, reconnects: set[int]) -> None:
    """Write a log piece by piece while it is shipped, and wait until the server has what it can get."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(folder, server.open, lambda: [NAME])
        path = f"{folder}/{log_file(NAME)}"
        spool.begin(())
        running = asyncio.ensure_future(spool.run())
        try:
            for number, piece in enumerate(writes):
                with open(path, "ab") as file:
                    file.write(piece)
                spool._grown(os.path.basename(path))
                if number in reconnects:
                    spool.reconnected()
                await asyncio.sleep(0)
            spool.ended(NAME, os.stat(path).st_size)
            spool.release(NAME)
            async with asyncio.timeout(DEADLINE_S):
                while spool.machine.logs:
                    await asyncio.sleep(0.001)
            assert not os.path.exists(path)
        finally:
            running.cancel()
            await asyncio.wait((running,))


CASES = {
    "writes": some.lists(some.binary(min_size=1, max_size=40), min_size=1, max_size=6),
    "breaks": some.lists(some.sampled_from(["", "before", "after", "cancelled"]), max_size=5),
    "reconnects": some.sets(some.integers(0, 5), max_size=3),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and batches so small that every log has several, and no long wait after trouble."""
    monkeypatch.setattr(machine, "CHUNK_BYTES_MAX", 7)
    monkeypatch.setattr(machine, "BATCH_BYTES_MAX", 20)
    monkeypatch.setattr(machine, "RETRY_MS_MIN", 0)
    monkeypatch.setattr(machine, "RETRY_MS_MAX", 1)


@settings(max_examples=40, deadline=None)
@given(**CASES)
def test_every_byte_arrives_once_and_in_order(writes: list[bytes], breaks: list[str], reconnects: set[int]) -> None:
    server = Server(breaks)
    asyncio.run(ship(writes, server, reconnects))
    assert server.data == b"".join(writes)


def test_a_byte_that_is_dropped_between_two_chunks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the property above."""
    read = Spool._read

    def careless(self: Spool, wanted: ReadFile) -> tuple[bytes, int]:
        data, size = read(self, wanted)
        return data[1 if wanted.offset else 0 :], size

    monkeypatch.setattr(Spool, "_read", careless)
    server = Server([])
    asyncio.run(ship([b"0123456789" * 4] * 2, server, set()))
    assert server.data != b"0123456789" * 8
