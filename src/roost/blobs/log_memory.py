"""Logs in memory: they live as long as the process."""

from roost.ports.logs import LocalLog, parts_of


class MemoryLogs:
    """The Logs port on a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytearray] = {}

    def append(self, key: str, offset: int, data: bytes) -> int:
        parts_of(key)
        if offset < 0:
            raise ValueError(f"an offset is not negative: {offset}")
        size = len(self._blobs.get(key, b""))
        if offset > size:
            return size
        blob = self._blobs.setdefault(key, bytearray())
        blob += data[size - offset :]
        return len(blob)

    def read(self, key: str, offset: int, limit: int) -> bytes:
        parts_of(key)
        if offset < 0 or limit < 0:
            raise ValueError(f"offset and limit are not negative: {offset}, {limit}")
        return bytes(self._blobs.get(key, b"")[offset : offset + limit])

    def size(self, key: str) -> int | None:
        parts_of(key)
        blob = self._blobs.get(key)
        return None if blob is None else len(blob)

    def drop(self, key: str) -> None:
        parts_of(key)
        for found in [found for found in list(self._blobs) if found == key or found.startswith(f"{key}/")]:
            self._blobs.pop(found, None)

    def found(self) -> list[LocalLog]:
        return [LocalLog(key, len(blob), 0) for key, blob in sorted(self._blobs.items())]

    def close(self) -> None:
        pass
