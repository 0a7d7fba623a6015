"""The ends of logs on the disk of one server: bytes under a key that only grow, until the whole is dropped."""

import re
from typing import NamedTuple, Protocol

import msgspec

# Escaped, a byte may take three: a path of 3,000 and a root of 1,000 still fit into the 4,096 that systems take.
KEY_BYTES_MAX = 1_000
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class LogsUnavailable(msgspec.Struct, frozen=True):
    """The bytes cannot be kept or read now; `reason` says what an operator can do."""

    reason: str


class LocalLog(NamedTuple):
    key: str
    size: int
    changed_ms: int  # when the last bytes came, of the wall clock


class Logs(Protocol):
    """Six promises, synchronous and cheap for small chunks; tests/blobs/log_contract.py holds every kind to them.

    A key is text like "project/workload/index/attempt": parts between slashes, see `parts_of`. What a crash of the
    machine takes is the end of a log, never its middle: the sender asks for the size and sends the rest again.
    Raises ValueError for a key or a number that makes no sense.
    """

    def append(self, key: str, offset: int, data: bytes) -> int | LogsUnavailable:
        """Keep data, which begins at offset of the whole, and return the size now.

        Bytes that are there already are skipped, so sending twice is harmless. Where data begins beyond the end nothing
        is kept, and the size returned tells the sender where to go on. A disk that fills up keeps a part.
        """

    def read(self, key: str, offset: int, limit: int) -> bytes | LogsUnavailable:
        """At most limit bytes from offset on; nothing at the end, or where there is no such log."""

    def size(self, key: str) -> int | LogsUnavailable | None:
        """How many bytes there are, None if there is no such log."""

    def drop(self, key: str) -> LogsUnavailable | None:
        """Forget the log, and all whose keys begin with key and a slash. That there are none is fine."""

    def found(self) -> list[LocalLog] | LogsUnavailable:
        """All that there is, in the order of their keys."""

    def close(self) -> None:
        """Let go of files. What was kept stays."""


def parts_of(key: str) -> list[str]:
    """The parts of a key, none of which can lead out of the root."""
    parts = key.split("/")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"a log's key has at most {KEY_BYTES_MAX} bytes: {key[:100]!r}...")
    if any(part in ("", ".", "..") for part in parts) or CONTROL.search(key):
        raise ValueError(f"not a log's key: {key!r}")
    return parts
