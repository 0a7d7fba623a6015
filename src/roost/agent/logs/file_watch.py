"""Which log files have grown, from the kernel: one inotify watch on their folder, so a silent run costs nothing.

Where inotify is not to be had, every log of a live run is looked at from time to time instead.
"""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterable

PAUSE_S = 0.025  # after news, no more are taken for so long: a run that prints in a loop is heard forty times a second
LOOK_S = 0.5  # between two looks, where there is no inotify
READ_BYTES = 1 << 16

_IN_MODIFY = 0x2
_IN_Q_OVERFLOW = 0x4000
_HEADER = struct.Struct("iIII")

Grown = Callable[[str], None]


class FileWatch:
    """Tells names of files in one folder that have grown. `live` names those that may grow at all."""

    def __init__(self, folder: str, grown: Grown, live: Callable[[], Iterable[str]]) -> None:
        self._folder = folder
        self._grown = grown
        self._live = live
        self._loop = asyncio.get_running_loop()
        self._fd = _watch(folder)
        self._sizes: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._listen() if self._fd >= 0 else self._inspect()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _listen(self) -> None:
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        self._loop.remove_reader(self._fd)
        self._timer = self._loop.call_later(PAUSE_S, self._listen)
        data = os.read(self._fd, READ_BYTES)
        names: dict[str, None] = {}
        at = 0
        while at < len(data):
            _, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size + length
            if mask & _IN_Q_OVERFLOW:
                names.update(dict.fromkeys(self._live()))
            else:
                names[os.fsdecode(data[at - length : at].rstrip(b"\0"))] = None
        for name in names:
            self._grown(name)

    def _inspect(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._inspect)
        before, self._sizes = self._sizes, {}
        for name in self._live():
            try:
                size = self._sizes[name] = os.stat(f"{self._folder}/{name}").st_size
            except OSError:
                continue
            if size > before.get(name, 0):
                self._grown(name)


def _watch(folder: str) -> int:
    """A descriptor that tells of writes in a folder; below 0 where that cannot be had."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return -1
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(folder), _IN_MODIFY) < 0:
        os.close(fd)
        return -1
    return fd
