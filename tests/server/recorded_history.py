"""A cluster whose commits are recorded: the core is driven by hand; a history and a copy in memory are kept."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from roost.core.invariants import differences
from roost.core.replica import mirror
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.step import step
from roost.model.events import Event
from roost.ports.store import Change, Snapshot
from roost.server.engine.recording import records_of
from roost.server.history.service import History
from tests.core.random_clusters import events_of, small_cluster

FOREVER_MS = 1 << 60  # simulated time begins in 1970
DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


class RecordedHistory:
    """A state, its history, and every revision as it was."""

    def __init__(self, history: History, state: State | None = None) -> None:
        self.history = history
        if state is None:
            state = small_cluster()
            state.meta.first_serial = 1
        self.state = state
        self.was: dict[int, list[Change]] = {}
        self.times: dict[int, int] = {}
        self._note()
        history.begin(self.state, self.state.revision)

    def steps(self, events: list[Event], wait_ms: int = 10) -> None:
        """Something happens."""
        now = self.state.now_ms + wait_ms
        done = step(self.state, events, now)
        self.history.take(self.state, done.changes, done.transitions)
        self._note()

    def happens(self, kind: str, what: Any) -> None:
        """One action of tests/core/random_clusters.py."""
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
        past, moment = await self.history.at(at, self.state.now_ms)
        assert past.revision == revision, (at, moment)
        return differences(past, mirror(Snapshot(revision, self.was[revision]), Settings()))

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
async def recorded_history(folder: Path, state: State | None = None, **settings: Any) -> AsyncIterator[RecordedHistory]:
    """A recorded cluster; queued rows are written when the block ends."""
    history = History(folder, Settings(), **{"retention_ms": FOREVER_MS, **settings})
    history.start()
    try:
        yield RecordedHistory(history, state)
    finally:
        await history.close()
