"""One reader of the log of an instance: pieces as they come, over all attempts, until the instance ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from roost.model.errors import NoService
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED, FINISHED
from roost.schema.feed import AttemptView, EndingView, MissingView
from roost.schema.reason_text import ReasonView, message_of, reason_view
from roost.server.agents.log_store import LogEnd
from roost.server.operations.context import Call


class LogEvent(msgspec.Struct, frozen=True):
    """Bytes of a log, what is missing of it, a further attempt, or the end.

    `attempt` and `offset`: where to resume after this event.
    """

    attempt: int
    offset: int
    data: bytes = b""
    missing: MissingView | None = None
    begun: AttemptView | None = None
    ending: EndingView | None = None


def log_name(workload: Workload, index: int, attempt: int) -> str:
    """The name of a log: PROJECT/NAME/SERIAL/INDEX.ATTEMPT."""
    return f"{workload.key}/{workload.serial}/{index}.{attempt}"


def log_end(instance: Instance, attempt: int) -> LogEnd:
    """The end of one of its attempts, as the state has it."""
    if attempt == instance.attempt:
        return LogEnd(instance.state not in ALLOCATED, instance.log_size)
    sizes = [line.log_size for line in instance.story if line.attempt == attempt and line.log_size is not None]
    return LogEnd(True, sizes[-1] if sizes else None)


class LogStreamer:
    """An attempt, and how far it was read."""

    def __init__(self, call: Call, workload: Workload, index: int, attempt: int, offset: int) -> None:
        self._context = call.context
        self._redactor = call.redactor
        self._workload = workload
        self._key = f"{workload.key}.{index}"
        self._index = index
        self._attempt = attempt
        self._offset = offset

    async def events(self) -> AsyncGenerator[LogEvent, None]:
        """The position at once, then pieces and attempts, and the end. Raises NoService when the server stops."""
        yield self._event()
        while True:
            if self._attempt:
                async for event in self._pieces():
                    yield event
                missing = self._missing()
                if missing is not None:
                    yield LogEvent(self._attempt, self._offset, missing=missing)
            event = await self._what_next()
            yield event
            if event.ending is not None:
                return

    async def _pieces(self) -> AsyncGenerator[LogEvent, None]:
        """The log of one attempt, until no more will come."""
        watch = self._context.watch
        source = self._context.logs.follow(self._log, self._offset, self._end)
        piece: asyncio.Task[Any] = asyncio.ensure_future(_next(source))
        change = watch.changed(self._key)
        try:
            while not watch.closed:
                await asyncio.wait({piece, change}, return_when=asyncio.FIRST_COMPLETED)
                if piece.done():
                    found = piece.result()
                    if found is None:
                        return
                    offset, data = found
                    self._offset = offset + len(data)
                    yield self._event(data)
                    piece = asyncio.ensure_future(_next(source))
                if change.done():
                    change = watch.changed(self._key)
                    # The log itself looks at the state only now and then; the end is sent at once.
                    if self._is_read():
                        return
        finally:
            change.cancel()
            piece.cancel()
            await asyncio.wait({piece})

    async def _what_next(self) -> LogEvent:
        """Wait until it is known what comes after this attempt."""
        watch = self._context.watch
        while not watch.closed:
            await self._context.engine.settled()  # an end that is not durable yet is not sent
            instance = self._instance()
            if instance is not None and instance.attempt > self._attempt:
                self._attempt, self._offset = self._attempt + 1, 0
                begun = AttemptView(self._attempt, instance.node, *self._why(instance.reason))
                return LogEvent(self._attempt, self._offset, begun=begun)
            ending = self._ending(instance)
            if ending is not None:
                return LogEvent(self._attempt, self._offset, ending=ending)
            changes = {watch.changed(key) for key in (self._key, self._workload.key)}
            try:
                await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for change in changes:
                    change.cancel()
        raise NoService("the server is stopping")

    def _event(self, data: bytes = b"") -> LogEvent:
        return LogEvent(self._attempt, self._offset, data)

    def _instance(self) -> Instance | None:
        return self._context.engine.state.instances.get(self._key) if self._known() is not None else None

    def _known(self) -> Workload | None:
        """The workload, unless its name has been given to another one since."""
        workload = self._context.engine.state.workloads.get(self._workload.key)
        return workload if workload is not None and workload.serial == self._workload.serial else None

    @property
    def _log(self) -> str:
        return log_name(self._workload, self._index, self._attempt)

    def _end(self) -> LogEnd:
        instance = self._instance()
        return LogEnd(True) if instance is None else log_end(instance, self._attempt)

    def _missing(self) -> MissingView | None:
        instance, count = self._instance(), self._context.logs.missing(self._log, self._end())
        if instance is None or not count:
            return None
        nodes = [line.node for line in instance.story if line.attempt == self._attempt and line.node]
        return MissingView(self._attempt, count, nodes[-1] if nodes else "")

    def _is_read(self) -> bool:
        """Whether everything of a log was read and no more will come."""
        logs = self._context.logs
        return logs.finished(self._log, self._end()) and (logs.size(self._log) or 0) <= self._offset

    def _ending(self, instance: Instance | None) -> EndingView | None:
        """How it ended; None while it may still go on."""
        workload = self._known()
        if workload is None:
            return EndingView("gone", self._attempt, "the workload was deleted")
        if instance is None:
            message, reason = self._why(workload.reason)
            state = workload.unstarted_end_state
            return EndingView(state, 0, message, reason=reason) if state else None
        if instance.state not in FINISHED:
            return None
        message, reason = self._why(instance.reason)
        return EndingView(instance.state, instance.attempt, message, instance.exit_code, instance.signal, reason)

    def _why(self, reason: Reason | None) -> tuple[str, ReasonView | None]:
        visible = self._redactor.visible
        return message_of(reason, visible), reason_view(reason, visible)


async def _next(source: AsyncIterator[tuple[int, bytes]]) -> tuple[int, bytes] | None:
    return await anext(source, None)
