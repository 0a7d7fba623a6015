"""A life that is recorded: the core is driven by hand, and what it commits goes into a history, and into our memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from roost.core.check import differences
from roost.core.load import mirror
from roost.core.state import Settings, State
from roost.core.step import step
from roost.model.events import Event
from roost.ports.store import Change, Snapshot
from roost.server.history import History
from roost.server.journal import records_of
from tests.core.lives import born, events_of

FOREVER_MS = 1 << 60  # lives begin in 1970
DEADLINE_S = 20.0


class Told:
    """A state, its history, and every revision as it was."""

    def __init__(self, history: History, state: State | None = None) -> None:
        self.history = history
        if state is None:
            state = born()
            state.meta.born = 1
        self.state = state
        self.was: dict[int, list[Change]] = {}
        self.times: dict[int, int] = {}
        self._note()
        history.begin(self.state, self.state.revision)

    def steps(self, events: list[Event], wait_ms: int = 10) -> None:
        """Something happens."""
        now = self.state.now_ms + wait_ms
        done = step(self.state, events, now)
        self.history.take(self.state, done.changes, done.forgotten)
        self._note()

    def happens(self, kind: str, what: Any) -> None:
        """One of the things that tests/core/lives.py knows."""
        wait_ms = what * 1_000 if kind == "wait" else 10
        self.steps(events_of(self.state, kind, what, self.state.now_ms + wait_ms), wait_ms)

    async def written(self) -> None:
        """Wait until the history has everything. Steps that change nothing go on, as they do in a server."""

        def is_written() -> bool:
            self.history.take(self.state, ())
            return self.history.standing().revision >= self.state.revision

        await until(is_written)

    async def differs(self, at: str, revision: int) -> list[str]:
        """Where the past as it is shown differs from what it was."""
        past = await self.history.at(at, self.state.now_ms)
        assert past.state.revision == revision, (at, past.moment)
        return differences(past.state, mirror(Snapshot(revision, self.was[revision]), Settings()))

    def _note(self) -> None:
        self.was[self.state.revision] = records_of(self.state)
        self.times[self.state.revision] = self.state.now_ms


async def until(holds: Callable[[], Any]) -> Any:
    """Wait until something holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not (found := holds()):
            await asyncio.sleep(0.002)
    return found


@asynccontextmanager
async def told(folder: Path, state: State | None = None, **settings: Any) -> AsyncIterator[Told]:
    """A recorded life; what is queued is written when the block ends."""
    history = History(folder, Settings(), **{"keep_ms": FOREVER_MS, **settings})
    history.start()
    try:
        yield Told(history, state)
    finally:
        await history.close()
