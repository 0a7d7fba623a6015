"""Logs, byte by byte: whatever a server serves was written, and no log is called finished short of its size."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import shake_128

from roost.blobs.object_memory import MemoryObjects
from roost.server.logs.machine import LogEnd, LogStatus
from roost.server.logs.segments import Segment, read_key
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
        self._removed: dict[str, bool] = {}  # with their workloads
        self._doubled: dict[str, bool] = {}  # of two attempts: not checked
        self.forgetful = False  # the server has no store
        self.roots: list[MemoryObjects] = []  # segments, server by server

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
        """A machine has lost the end of these logs: their loss is real unless they are sealed."""
        for name in names:
            if self._sealed(name) < self.written.get(name, 0):
                self._lost[name] = True

    def released(self, name: str, size: int) -> None:
        """An agent removes its file of so many bytes: they must survive the loss of any server's disk but the root."""
        if size and name in self.written and name not in self._lost and self._sealed(name) < size:
            if name not in self._removed:
                raise Wrong(f"an agent released {name} with {size} bytes, and {self._sealed(name)} are sealed")

    def _sealed(self, name: str) -> int:
        ends = [0]
        for root in self.roots:
            known = [segment for segment in map(read_key, root.list(name)) if segment is not None]
            ends += [segment.end for segment in whole_chain(known)]
        return max(ends)

    def removed(self, prefix: str) -> None:
        """The removal of a workload (PROJECT/NAME/SERIAL) is committed: from now on its logs may go."""
        self._removed.update((name, True) for name in self.written if name.startswith(f"{prefix}/"))

    def left(self, root: MemoryObjects) -> list[str]:
        """Segments that no workload has any longer. A server without a store does not know what it had."""
        gone = [name for name in self._removed if name not in self._lost and not self.forgetful]
        return [f"{name} is left, and its workload is removed" for name in gone if root.list(name)]

    def loss_accepted(self) -> None:
        """Commits are lost. A workload whose removal is among them is in the state again, and its logs are gone."""
        self._lost.update(self._removed)

    def may_be_short(self, name: str) -> bool:
        return name in self._lost

    def unreadable(self, server: str, name: str, why: str) -> None:
        """A server has segments of a log in mind that are gone. One that leads no more may not know of a removal."""
        if name not in self._removed:
            raise Wrong(f"{server} cannot read {name}: {why}")

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


def whole_chain(segments: Iterable[Segment]) -> list[Segment]:
    """Segments without a gap from the beginning on, found without the code that is checked."""
    found: list[Segment] = []
    end = 0
    while next_ones := [segment for segment in segments if segment.start <= end < segment.end]:
        found.append(max(next_ones, key=lambda segment: segment.end))
        end = found[-1].end
    return found
