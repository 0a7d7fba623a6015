"""Logs, byte by byte: whatever a server serves was written, and no log is called finished short of its size."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import shake_128

from roost.ports.logs import Logs
from roost.server.logs.machine import LogEnd, LogStatus
from roost.sim.world.world import Wrong

LOG_BYTES_MAX = 1_500  # of one attempt: every byte is compared with the truth at every read


@lru_cache(maxsize=1024)
def log_bytes(name: str, token: int) -> bytes:
    """All that an attempt would ever write: any byte at any offset is known, and none repeats at another offset."""
    return shake_128(f"{name} {token}".encode()).digest(LOG_BYTES_MAX)


class LogCheckers:
    """The truth about all logs: how much was written, by which attempt, and which bytes were lost with a disk."""

    def __init__(self) -> None:
        self.written: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._lost: dict[str, bool] = {}
        self._removed: dict[str, bool] = {}  # with their workloads, after the commit
        self._doubled: dict[str, bool] = {}  # of two attempts: not checked
        self.forgetful = False  # the server has no store
        self.blobs: list[Logs] = []  # server by server

    def began(self, name: str, token: int) -> None:
        """An attempt begins. A server without a store may number it as one before that no agent reported.

        After an accepted loss, an attempt whose end was lost may begin once more.
        """
        if name not in self._tokens:
            self._tokens[name], self.written[name] = token, 0
        elif self.forgetful or self._tokens[name] == token:
            self._doubled[name] = True
            self.written.pop(name, None)
        else:
            raise Wrong(f"{name} is the log of {self._tokens[name]} and of {token}")

    def wrote(self, name: str, size: int) -> None:
        if name not in self._doubled:
            self.written[name] = size

    def bytes_of(self, name: str) -> bytes:
        return log_bytes(name, self._tokens[name])[: self.written.get(name)]

    def file_cut(self, names: Iterable[str]) -> None:
        """A machine has lost the end of these logs: their loss is real unless a server has them."""
        for name in names:
            if not any(_size(blobs, name) >= self.written.get(name, 0) for blobs in self.blobs):
                self._lost[name] = True

    def blob_cut(self, name: str) -> None:
        """A server has lost the end of a log. It may have been the only one, and its answer may be on its way."""
        self._lost[name] = True

    def removed(self, prefix: str) -> None:
        """A server removes the logs of a workload (PROJECT/NAME/SERIAL): the state must no longer have it."""
        self._removed.update((name, True) for name in self.written if name.startswith(f"{prefix}/"))

    def loss_accepted(self) -> None:
        """Commits are lost. A workload whose removal is among them is in the state again, and its logs are gone."""
        self._lost.update(self._removed)

    def may_be_short(self, name: str) -> bool:
        return name in self._lost

    def read(self, server: str, name: str, end: LogEnd, status: LogStatus, data: bytes) -> None:
        """A server has served all it has of a log."""
        truth = self.bytes_of(name)
        if len(data) != status.size or data != truth[: len(data)]:
            same = next((at for at in range(len(data)) if data[at : at + 1] != truth[at : at + 1]), len(data))
            raise Wrong(f"{server} serves {len(data)} bytes of {name}, and byte {same} is not what was written")
        if end.size is not None and end.size != len(truth):
            raise Wrong(f"{name} has {len(truth)} bytes, the state says {end.size}")
        if status.finished and not end.over:
            raise Wrong(f"{server} calls {name} finished, and its attempt has not ended")
        if end.size is not None and status.finished and status.size + status.missing != end.size:
            raise Wrong(f"{server} calls {name} finished with {status.size} of {end.size} bytes")


def _size(blobs: Logs, name: str) -> int:
    size = blobs.size(name)
    return size if isinstance(size, int) else 0
