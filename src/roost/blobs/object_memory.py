"""Objects in memory: they live as long as the process."""

from roost.ports.logs import parts_of


class MemoryObjects:
    """The Objects port on a dictionary."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        parts_of(key)
        self._objects[key] = bytes(data)

    def get(self, key: str) -> bytes | None:
        parts_of(key)
        return self._objects.get(key)

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[str]:
        parts_of(folder)
        return sorted(key for key in list(self._objects) if key.startswith(f"{folder}/") and key > after)[:limit]

    def delete(self, key: str) -> None:
        for found in (key, *self.list(key)):
            self._objects.pop(found, None)
