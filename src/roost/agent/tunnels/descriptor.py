"""A file descriptor that is read and written without blocking the loop, one piece after the other."""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

PIECE_BYTES = 32 << 10


class Descriptor:
    """Owns `fd`: a pipe, a socket or a side of a terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    @property
    def fd(self) -> int:
        return self._fd

    async def read(self) -> bytes:
        """The next bytes; nothing: there will be no more."""
        while self._fd >= 0:
            try:
                return os.read(self._fd, PIECE_BYTES)
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
            except OSError as error:
                if error.errno in (errno.EIO, errno.ECONNRESET):  # a terminal whose last process is gone; a port
                    return b""
                raise
        return b""

    async def write(self, data: bytes) -> bool:
        """All of it. False: its reader is gone."""
        rest = memoryview(data)
        while rest:
            if self._fd < 0:
                return False
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
            except OSError:
                return False
        return True

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def _ready(self, add: Callable[..., Any], remove: Callable[..., Any]) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        add(self._fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            if self._fd >= 0:
                remove(self._fd)
