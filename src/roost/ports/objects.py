"""Objects: whole pieces of bytes under keys, below a root that several servers may share. As segments of logs."""

from typing import Protocol

import msgspec


class ObjectsUnavailable(msgspec.Struct, frozen=True):
    """The object cannot be kept or read now; `reason` says what an operator can do."""

    reason: str


class Objects(Protocol):
    """Four promises (tests/blobs/object_contract.py), for worker threads: each may wait for a disk or a network.

    A key is text like "logs/project/name": parts between slashes, see `parts_of` of ports/logs.py. Safe to use from
    several threads and by several servers. Raises ValueError for a key that makes no sense.
    """

    def put(self, key: str, data: bytes) -> ObjectsUnavailable | None:
        """Keep an object. After this it survives a crash of any machine; others find all of it, or what was before."""

    def get(self, key: str) -> bytes | ObjectsUnavailable | None:
        """The whole object; None if there is none."""

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[str] | ObjectsUnavailable:
        """All keys that begin with folder and a slash, in order.

        With a limit: so many of them, in an order of the store's own. The next ones come after the last.
        """

    def delete(self, key: str) -> ObjectsUnavailable | None:
        """Forget the object, and all whose keys begin with key and a slash. That there are none is fine."""
