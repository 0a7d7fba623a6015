"""The spool: log files of runs on their way to the server. Bytes are sent as they are, from where the server has them.

A file is called after its log (`/` as `~`), so what an earlier life of this agent left behind can still be sent. A run
that prints nothing is never mentioned: only files that grow are looked at, and the report of its end tells the size.
"""

import asyncio
import ctypes
import os
import random
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from roost.agent.logs.file_watch import FileWatch
from roost.agent.prepare import log_file
from roost.keeper.clock import now_ms
from roost.wire import agent_pb2 as pb

CHUNK_BYTES_MAX = 256 << 10
BATCH_BYTES_MAX = 1 << 20  # per message: four large chunks, or a thousand small ones
BATCH_CHUNKS_MAX = 1_000
RETRY_S_MIN, RETRY_S_MAX = 0.2, 3.0
ANSWER_S_MAX = 30.0  # a server that keeps a megabyte for longer is not going to
HOLE_BYTES = 64 << 20  # of a log the server wants no more of, so much is given back to the disk at a time

_FILE = re.compile(r"[\w-]+~[\w-]+~\d+~\d+\.\d+", re.ASCII)
_PUNCH = 0x3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE

Open = Callable[[], "grpc.aio.StreamStreamCall[bytes, bytes]"]


@dataclass(slots=True, eq=False)
class Log:
    """One log that has bytes."""

    name: str
    path: str
    kept: int = 0  # how far the server has it
    final: int | None = None  # its size in the end, once the run has ended
    released: bool = False  # nothing here needs the file now
    queued: bool = False
    holed: int = 0

    @property
    def is_shipped(self) -> bool:
        """Whether the server has all there will ever be."""
        return self.final is not None and self.kept >= self.final


class Spool:
    """Logs share one stream fairly: each in turn gives a chunk, and the next batch goes when the last was answered.

    A stream belongs to one session with one server. Another session, or trouble on the stream, begins another stream,
    and that begins with the question how far the server has each log: what was on its way is then sent again.
    """

    def __init__(self, folder: str, open_stream: Open, live: Callable[[], Iterable[str]]) -> None:
        self._folder = folder
        self._open = open_stream
        self._live = live
        self._logs: dict[str, Log] = {}
        self._queue: deque[Log] = deque()
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()  # the server has what there is
        self.idle.set()
        self._progress_ms = 0  # when the server last took something, or there was nothing to send
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] | None = None
        self._moved = asyncio.Event()  # the stream is not to be used again: whatever we wait for may never come

    def begin(self, ended: Iterable[str]) -> None:
        """Take up what is in the folder. What belongs to no live run has ended; `ended` are those not forgotten yet."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        stored = {log_file(name) for name in self._live()}
        waiting = {log_file(name) for name in ended}
        for file in sorted(os.listdir(self._folder)):
            if not _FILE.fullmatch(file):
                continue
            if file in stored:
                self._grown(file)
            elif size := os.stat(f"{self._folder}/{file}").st_size:
                name = file.replace("~", "/")
                self.ended(name, size)
                if file not in waiting:
                    self.release(name)
            elif file not in waiting:
                os.unlink(f"{self._folder}/{file}")

    def ended(self, name: str, size: int) -> None:
        """A run is over and its log has so many bytes. None: no word about it."""
        if size:
            log = self._log(name)
            log.final = size
            self._push(log)

    def release(self, name: str) -> None:
        """The run is forgotten: its file goes as soon as the server has it."""
        log = self._logs.get(name)
        if log is not None:
            log.released = True
            self._finish(log)

    def reconnected(self) -> None:
        """There is a server again, perhaps another one. The old stream may hang without a word, so it is left."""
        self._moved.set()
        self._wake.set()

    def stuck_ms(self, now: int) -> int:
        """For how long the server has taken nothing although there is something to send."""
        return 0 if self.idle.is_set() else max(0, now - self._progress_ms)

    async def run(self) -> None:
        """Ship until cancelled. Trouble is waited out: the bytes are on disk."""
        notice = FileWatch(self._folder, self._grown, lambda: [log_file(name) for name in self._live()])
        pause_s = RETRY_S_MIN
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._ship()
                    pause_s = RETRY_S_MIN
                except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError):
                    self._moved.set()
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1))
                    pause_s = min(pause_s * 2, RETRY_S_MAX)
                    self._wake.set()
        finally:
            notice.close()
            self._hang_up()

    async def _ship(self) -> None:
        """Send until nothing is left."""
        while self._queue or self._moved.is_set():
            if self._call is None or self._moved.is_set():
                self._hang_up()
                self._moved.clear()
                if not self._logs:
                    break  # no stream before there is something to say
                self._call = self._open()
                await self._exchange([pb.LogChunk(log=log.name, offset=log.kept) for log in self._logs.values()])
            chunks = self._gather()
            if chunks:
                await self._exchange(chunks)
        self.idle.set()

    async def _exchange(self, chunks: list[pb.LogChunk]) -> None:
        """One batch, and the answer to it."""
        assert self._call is not None
        for start in range(0, len(chunks), BATCH_CHUNKS_MAX):
            batch = pb.LogChunks(chunks=chunks[start : start + BATCH_CHUNKS_MAX])
            async with asyncio.timeout(ANSWER_S_MAX):
                data = await self._unless_moved(_reported(self._call, batch.SerializeToString()))
            if data is grpc.aio.EOF:
                raise ConnectionError("the server ended the stream")
            self._progress_ms = now_ms()
            for size in pb.LogSizes.FromString(data).sizes:
                log = self._logs.get(size.log)
                if log is not None:
                    self._kept(log, size.size)

    async def _unless_moved(self, exchange: Coroutine[Any, Any, Any]) -> Any:
        """An answer, unless another server takes us in: gRPC does not end calls on a channel that was closed."""
        answering, moving = asyncio.ensure_future(exchange), asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait((answering, moving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ConnectionError("another server has taken us in")
            if answering.cancelled():  # by gRPC, because the channel was closed: that must not end the shipping
                raise ConnectionError("the channel was closed")
            return answering.result()
        finally:
            for task in (answering, moving):
                task.cancel()
            await asyncio.gather(answering, moving, return_exceptions=True)

    def _kept(self, log: Log, size: int) -> None:
        log.kept = size
        if log.is_shipped:
            self._finish(log)
        elif log.final is not None or self._size(log) > size:
            self._push(log)

    def _gather(self) -> list[pb.LogChunk]:
        chunks: list[pb.LogChunk] = []
        room = BATCH_BYTES_MAX
        while self._queue and room > 0 and len(chunks) < BATCH_CHUNKS_MAX:
            log = self._queue.popleft()
            log.queued = False
            data = self._read(log, min(CHUNK_BYTES_MAX, room))
            if not data and log.final is not None and not log.is_shipped:
                log.final = log.kept  # the file was truncated: this is all there is
                self._finish(log)
            elif data:
                chunks.append(pb.LogChunk(log=log.name, offset=log.kept, data=data))
                room -= len(data)
        return chunks

    def _read(self, log: Log, limit: int) -> bytes:
        if log.final is not None:
            limit = max(0, min(limit, log.final - log.kept))
        with suppress(OSError), open(log.path, "rb", 0, opener=_no_link) as file:
            size = os.fstat(file.fileno()).st_size
            if log.kept <= size:
                return os.pread(file.fileno(), limit, log.kept)
            self._give_back(log, size)
        return b""

    def _give_back(self, log: Log, size: int) -> None:
        """The server wants no more of a log: what is written on must not fill the disk."""
        if size - log.holed < HOLE_BYTES:
            return
        with suppress(OSError, AttributeError), open(log.path, "r+b", opener=_no_link) as file:
            libc = ctypes.CDLL(None)
            libc.fallocate(file.fileno(), _PUNCH, ctypes.c_long(log.holed), ctypes.c_long(size - log.holed))
        log.holed = size

    def _size(self, log: Log) -> int:
        try:
            return os.stat(log.path).st_size
        except OSError:
            return 0

    def _grown(self, file: str) -> None:
        if _FILE.fullmatch(file):
            self._push(self._log(file.replace("~", "/")))

    def _push(self, log: Log) -> None:
        if not log.queued and not log.is_shipped:
            log.queued = True
            self._queue.append(log)
            if self.idle.is_set():
                self._progress_ms = now_ms()
                self.idle.clear()
            self._wake.set()

    def _finish(self, log: Log) -> None:
        if log.is_shipped and log.released:
            self._logs.pop(log.name, None)
            with suppress(FileNotFoundError):
                os.unlink(log.path)

    def _log(self, name: str) -> Log:
        return self._logs.setdefault(name, Log(name, f"{self._folder}/{log_file(name)}"))

    def _hang_up(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None


def _no_link(path: str, flags: int) -> int:
    """A run could have put a link in the place of its log, to have another file sent."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


async def _reported(call: "grpc.aio.StreamStreamCall[bytes, bytes]", data: bytes) -> Any:
    """Say something, and hear the answer; EOF if there is none."""
    await call.write(data)
    return await call.read()
