"""Follow: the log of an instance as it comes, over all its attempts, until it is over."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from roost.model.errors import NoService
from roost.model.instance import Instance
from roost.model.states import FINISHED, HOLDING
from roost.model.workload import Workload
from roost.server import sse
from roost.server.api.doors import Doors
from roost.server.auth_veil import Veil


def log_name(workload: Workload, index: int, attempt: int) -> str:
    """The name of a log: PROJECT/NAME/SERIAL/INDEX.ATTEMPT."""
    return f"{workload.key}/{workload.serial}/{index}.{attempt}"


class Follower:
    """One reader of one instance's log: an attempt, and how far it has read."""

    def __init__(self, doors: Doors, workload: Workload, index: int, attempt: int, offset: int, veil: Veil) -> None:
        self._doors = doors
        self._workload = workload
        self._key = f"{workload.key}.{index}"
        self._index = index
        self._attempt = attempt
        self._offset = offset
        self._veil = veil

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Pieces, news of attempts, and the end."""
        yield sse.mark(self._id())
        while True:
            if self._attempt:
                async for piece in self._pieces():
                    yield piece
            news = await self._what_next()
            yield news
            if not news.startswith(b"event: attempt"):
                return

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """The log of one attempt, until no more will come."""
        name = log_name(self._workload, self._index, self._attempt)
        source = self._doors.logs.follow(name, self._offset, self._is_past)
        piece: asyncio.Task[Any] = asyncio.ensure_future(_next(source))
        change = self._doors.watch.changed(self._key)
        try:
            while not self._doors.watch.closed:
                await asyncio.wait({piece, change}, return_when=asyncio.FIRST_COMPLETED)
                if piece.done():
                    found = piece.result()
                    if found is None:
                        return
                    offset, data = found
                    self._offset = offset + len(data)
                    yield sse.frame(b64encode(data), id=self._id())
                    piece = asyncio.ensure_future(_next(source))
                if change.done():
                    change = self._doors.watch.changed(self._key)
                    # The log itself looks at the state only now and then; whoever waits for an end is told at once.
                    if self._is_past() and self._is_read(name):
                        return
        finally:
            change.cancel()
            piece.cancel()
            await asyncio.wait({piece})

    async def _what_next(self) -> bytes:
        """Wait until it is known what comes after this attempt."""
        while not self._doors.watch.closed:
            try:
                await self._doors.engine.settled()  # an end that is not durable yet is not told
            except NoService as error:
                return sse.event({"message": error.message}, event="stopping")
            instance = self._instance()
            if instance is not None and instance.attempt > self._attempt:
                self._attempt, self._offset = self._attempt + 1, 0
                told = {"attempt": self._attempt, "node": instance.node, "cause": self._veil.words(instance.cause)}
                return sse.event(told, event="attempt") + sse.mark(self._id())
            ending = self._ending(instance)
            if ending is not None:
                return sse.event(ending, event="end")
            changes = {self._doors.watch.changed(key) for key in (self._key, self._workload.key)}
            try:
                await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for change in changes:
                    change.cancel()
        return sse.event({"message": "the server is stopping"}, event="stopping")

    def _instance(self) -> Instance | None:
        known = self._known()
        return self._doors.engine.state.instances.get(self._key) if known is not None else None

    def _known(self) -> Workload | None:
        """The workload, unless its name has been given to another one since."""
        workload = self._doors.engine.state.workloads.get(self._workload.key)
        return workload if workload is not None and workload.serial == self._workload.serial else None

    def _is_past(self) -> bool:
        """Whether this attempt is over."""
        instance = self._instance()
        return instance is None or instance.attempt > self._attempt or instance.state not in HOLDING

    def _is_read(self, name: str) -> bool:
        """Whether everything of a log was read and no more will come."""
        return self._doors.logs.finished(name, True) and (self._doors.logs.size(name) or 0) <= self._offset

    def _ending(self, instance: Instance | None) -> dict[str, Any] | None:
        """How it ended; None while it may still go on."""
        workload = self._known()
        if workload is None:
            return {"state": "gone", "attempt": self._attempt, "cause": "the workload is not kept any more"}
        if instance is None:
            return (
                {"state": workload.rest, "attempt": 0, "cause": self._veil.words(workload.cause)}
                if workload.rest
                else None
            )
        if instance.state not in FINISHED:
            return None
        return {
            "state": instance.state,
            "attempt": instance.attempt,
            "cause": self._veil.words(instance.cause),
            "exit_code": instance.exit_code,
            "signal": instance.signal,
        }

    def _id(self) -> str:
        return f"{self._attempt}.{self._offset}"


async def _next(source: AsyncIterator[tuple[int, bytes]]) -> tuple[int, bytes] | None:
    return await anext(source, None)
