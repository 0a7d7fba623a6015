"""The spool: log files of runs on their way to the server. machine.py decides; here bytes move between disk and gRPC.

A file is called after its log (`/` as `~`), so what an earlier life of this agent left behind can still be sent. A run
that prints nothing is never mentioned: only files that grow are looked at, and the report of its end tells the size.
"""

import asyncio
import ctypes
import errno
import os
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from roost.agent.logs.file_watch import FileWatch
from roost.agent.logs.machine import (
    CloseLogStream,
    Effect,
    GiveBack,
    OpenLogStream,
    ReadFile,
    SendBatch,
    SpoolMachine,
    UnlinkFile,
)
from roost.agent.prepare import log_file
from roost.keeper.clock import now_ms
from roost.model.keys import STDERR_SUFFIX
from roost.wire import agent_pb2 as pb

_FILE = re.compile(rf"[\w-]+~[\w-]+~\d+~\d+\.\d+({re.escape(STDERR_SUFFIX)})?", re.ASCII)
_PUNCH = 0x3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_TROUBLE = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the file is there, and can be read later

Open = Callable[[], "grpc.aio.StreamStreamCall[bytes, bytes]"]


class Spool:
    """Takes what happens to logs, and ships them while `run` does."""

    def __init__(self, folder: str, open_stream: Open, live: Callable[[], Iterable[str]]) -> None:
        self._folder = folder
        self._open = open_stream
        self._live = live
        self.machine = SpoolMachine(random.random)
        self.idle = asyncio.Event()  # the server has what there is
        self.idle.set()
        self._wake = asyncio.Event()
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] | None = None
        self._answer: asyncio.Task[Any] | None = None  # to the last batch

    def begin(self, ended: Iterable[str]) -> None:
        """Take up what is in the folder. What belongs to no live run has ended; `ended` are those not forgotten yet."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        found = [file for file in sorted(os.listdir(self._folder)) if is_log(file)]
        files = [(file.replace("~", "/"), self._size(file)) for file in found]
        self._happened(self.machine.begin(files, set(self._live()), set(ended), now_ms()))

    def ended(self, name: str, size: int) -> None:
        """A run is over and its log has so many bytes. None: no word about it."""
        self.machine.ended(name, size, now_ms())
        self._happened()

    def release(self, name: str) -> None:
        """The run is forgotten: its file goes as soon as the log is durable at the server."""
        self._happened(self.machine.release(name))

    def reconnected(self) -> None:
        """There is a server again, perhaps another one."""
        self._happened(self.machine.reconnected())

    def stuck_ms(self, now: int) -> int:
        """For how long the server has taken nothing although there is something to send."""
        return self.machine.stuck_ms(now)

    async def run(self) -> None:
        """Ship until cancelled. Trouble is waited out: the bytes are on disk."""
        notice = FileWatch(self._folder, self._grown, lambda: [log_file(name) for name in self._live()])
        self.machine.start()
        try:
            while True:
                self._wake.clear()
                if self._answer is not None and self._answer.done():
                    self._perform(self._heard(self._answer))
                self._perform(self.machine.tick(now_ms()))
                at_ms = self.machine.next_ms()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if at_ms is None else max(0, at_ms - now_ms()) / 1_000):
                        await self._wake.wait()
        finally:
            notice.close()
            self._perform(self.machine.stop())

    def _grown(self, file: str) -> None:
        if is_log(file):
            self.machine.grown(file.replace("~", "/"), now_ms())
            self._happened()

    def _happened(self, effects: Sequence[Effect] = ()) -> None:
        self._perform(effects)
        self._wake.set()

    def _heard(self, answer: asyncio.Task[Any]) -> list[Effect]:
        self._answer = None
        if answer.cancelled():  # by gRPC, because the channel was closed: that must not end the shipping
            return self.machine.broken(now_ms())
        error = answer.exception()
        if isinstance(error, _TROUBLE):
            return self.machine.broken(now_ms())
        sizes = pb.LogSizes.FromString(answer.result()).sizes
        return self.machine.answered([(size.log, size.size, size.durable) for size in sizes], now_ms())

    # effects

    def _perform(self, effects: Sequence[Effect]) -> None:
        left = deque(effects)
        while left:
            effect = left.popleft()
            match effect:
                case OpenLogStream():
                    pass  # with its first batch
                case CloseLogStream():
                    self._hang_up()
                case SendBatch():
                    self._answer = asyncio.ensure_future(self._exchange(effect))
                    self._answer.add_done_callback(self._answered)
                case ReadFile():
                    left.extend(self._was_read(effect))
                case GiveBack():
                    self._give_back(effect)
                case UnlinkFile(name):
                    with suppress(FileNotFoundError):
                        os.unlink(self._path(name))
        self.idle.set() if self.machine.is_idle else self.idle.clear()

    async def _exchange(self, batch: SendBatch) -> bytes:
        """One batch, and the answer to it."""
        if self._call is None:
            self._call = self._open()
        chunks = [pb.LogChunk(log=chunk.log, offset=chunk.offset, data=chunk.data) for chunk in batch.chunks]
        await self._call.write(pb.LogChunks(chunks=chunks).SerializeToString())
        data = await self._call.read()
        if data is grpc.aio.EOF:
            raise ConnectionError("the server ended the stream")
        return bytes(data)

    def _answered(self, answer: asyncio.Task[Any]) -> None:
        if not answer.cancelled():
            answer.exception()  # also of a stream that was left: it is not to be reported as forgotten
        self._wake.set()

    def _hang_up(self) -> None:
        """gRPC does not end calls on a channel that was closed, so nothing is waited for here."""
        if self._answer is not None:
            self._answer.cancel()
            self._answer = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _was_read(self, wanted: ReadFile) -> list[Effect]:
        try:
            data, size = self._read(wanted)
        except OSError as error:
            if error.errno in _PASSING:
                return self.machine.broken(now_ms())
            data, size = b"", 0
        return self.machine.was_read(data, size, now_ms())

    def _read(self, wanted: ReadFile) -> tuple[bytes, int]:
        """Raises OSError."""
        with open(self._path(wanted.log), "rb", 0, opener=_no_link) as file:
            size = os.fstat(file.fileno()).st_size
            return os.pread(file.fileno(), wanted.limit, wanted.offset) if wanted.offset <= size else b"", size

    def _give_back(self, hole: GiveBack) -> None:
        with suppress(OSError, AttributeError), open(self._path(hole.log), "r+b", opener=_no_link) as file:
            size = ctypes.c_long(hole.end - hole.start)
            ctypes.CDLL(None).fallocate(file.fileno(), _PUNCH, ctypes.c_long(hole.start), size)

    def _size(self, file: str) -> int:
        return os.lstat(f"{self._folder}/{file}").st_size

    def _path(self, name: str) -> str:
        return f"{self._folder}/{log_file(name)}"


def is_log(file: str) -> bool:
    return _FILE.fullmatch(file) is not None


def _no_link(path: str, flags: int) -> int:
    """A run could have put a link in the place of its log, to have another file sent."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
