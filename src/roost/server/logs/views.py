"""A log as a reader sees it: its bytes, or with the values of secrets masked. Offsets are those of the bytes."""

from collections.abc import AsyncIterator, Callable

from roost.server.logs.hub import LogHub
from roost.server.logs.machine import LogEnd
from roost.server.logs.masking import MaskedStream, Masker


class LogView:
    def __init__(self, hub: LogHub, name: str, masker: Masker) -> None:
        self._hub = hub
        self._name = name
        self._masker = masker

    async def held_back(self, size: int) -> int:
        """How many bytes before an offset are not shown while more may come: they may begin a value."""
        if not self._masker:
            return 0
        start = max(0, size - self._masker.reach)
        return self._masker.held_back(await self._hub.read(self._name, start, size - start))

    async def read(self, start: int, limit: int) -> tuple[bytes, int]:
        """Bytes from an offset on as they are shown, and the offset after them."""
        data = await self._hub.read(self._name, start, limit)
        if not self._masker or not data:
            return data, start + len(data)
        before = await self._before(start)
        after = await self._hub.read(self._name, start + len(data), self._masker.reach)
        return await self._hub.in_thread(self._masker.mask_between, before, data, after), start + len(data)

    async def follow(self, offset: int, end: Callable[[], LogEnd]) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces as they come, each with the offset after it."""
        stream = MaskedStream(self._masker, await self._before(offset)) if self._masker else None
        async for start, data in self._hub.follow(self._name, offset, end):
            offset = start + len(data)
            if stream is None:
                yield offset, data
            elif shown := await self._hub.in_thread(stream.feed, data):
                yield offset - len(stream.held), shown
        if stream is not None and (rest := stream.finish()):
            yield offset, rest

    async def _before(self, offset: int) -> bytes:
        reach = min(self._masker.reach, offset)
        return await self._hub.read(self._name, offset - reach, reach)
