"""Perform: act on what is durable. Orders to agents, news to watchers, old logs dropped, lines for the operator."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from roost.core.explain.why import decision_line
from roost.core.state.outcome import Placed, Step
from roost.core.state.state import State
from roost.core.transitions import followed_transitions
from roost.model.states import ABSENT, NodeStatus
from roost.ports.store import Change
from roost.schema.reason_text import render
from roost.server.agents.gateway import Gateway
from roost.server.feed.change_log import Watch
from roost.server.history.service import History
from roost.server.logs.hub import LogHub
from roost.server.observability import logging
from roost.server.observability.census import Census
from roost.server.webhooks.dispatcher import Hooks

LARGE_CHANGES = 10_000  # in a commit: some 10 ms for all that is done with it
LINES_AT_ONCE = 200  # of the log, 30 us each: a pass that places 2,000 instances wrote for 60 ms


class Executor:
    """Never waits for others, never raises: a failed effect is logged, and the next one runs."""

    def __init__(self, watch: Watch, logs: LogHub, history: History | None = None) -> None:
        self.watch = watch
        self.census = Census()
        self.history = history
        self.logs = logs
        self.hooks: Hooks | None = None  # they need the engine, which needs this
        self.streams: Gateway | None = None  # as the hooks
        self._log = logging.logger("server").bind()
        self._tells = logging.is_enabled("info")
        self._state: State | None = None
        self._ignored_reports = logging.RateLimitedLogger("server")
        self.placements: Counter[str] = Counter()
        self.ignored = 0
        self.failed = 0

    @property
    def connected(self) -> int:
        return len(self.streams.machine.sessions) if self.streams else 0

    async def act(self, state: State, done: Step) -> None:
        """A large commit, such as a retry of 100,000 instances, is acted on in several turns of the loop."""
        is_large = len(done.changes) > LARGE_CHANGES or len(done.placed) > LINES_AT_ONCE
        for _ in self._parts(state, done):
            if is_large:
                await asyncio.sleep(0)

    def _parts(self, state: State, done: Step) -> Iterator[None]:
        self._send(state, done)
        yield
        for first in range(0, len(done.changes), LARGE_CHANGES):
            self._try(self.census.take, state, done.changes[first : first + LARGE_CHANGES])
            yield
        for part in (self._publish, self._note):
            part(state, done)
            yield
        for first in range(0, len(done.placed), LINES_AT_ONCE):
            self._tell_placements(done.placed[first : first + LINES_AT_ONCE])
            yield
        self._tell(state, done)

    def _send(self, state: State, done: Step) -> None:
        if state is not self._state:
            self._begin(state, state.revision - bool(done.changes))
        streams = self.streams
        if streams is not None:
            for orders in done.assignments:  # an agent that registers again gets everything
                if not self._try(streams.send, orders):
                    self._try(streams.close, orders.node)
            if done.acknowledged:
                self._try(streams.acknowledge, done.acknowledged)

    def _publish(self, state: State, done: Step) -> None:
        if done.changes:
            self._try(self.watch.publish, state, done.changes)

    def _note(self, state: State, done: Step) -> None:
        if self.history is not None:
            self._try(self.history.take, state, done.changes, done.transitions)
        if self.hooks is not None and done.changes:
            self._try(self.hooks.take, state, done.changes, done.transitions)

    def _tell_placements(self, some: Sequence[Placed]) -> None:
        for placed in some:
            self.placements[placed.strategy] += 1
            if self._tells:
                self._log.info(decision_line(*placed))

    def _tell(self, state: State, done: Step) -> None:
        if done.transitions:
            self._tell_nodes(state, done)
        for prefix in done.swept:  # PROJECT/NAME/SERIAL
            self._try(self.logs.drop, prefix)
        self.ignored += len(done.ignored)
        for report in done.ignored:
            self._ignored_reports.info("report ignored", **report._asdict())

    def followed(self, state: State, changes: Sequence[Change]) -> None:
        if state is not self._state:
            self._begin(state, state.revision)
            return
        since = self.watch.revision
        self._try(self.census.take, state, changes)
        self._try(self.watch.publish, state, changes)
        if self.history is not None:
            self._try(self.history.take, state, changes, followed_transitions(state, changes, since))

    def reset(self) -> None:
        self._state = None
        self._try(self.watch.forget)
        if self.history is not None:
            self._try(self.history.reset)
        if self.streams is not None:
            self._try(self.streams.reset)

    def _begin(self, state: State, since: int) -> None:
        """A state was loaded; the next changes were committed after `since`."""
        self._state = state
        owners = {name: reservation.project for name, reservation in state.reservations.items()}
        self._try(self.watch.begin, state.meta.first_serial, since, owners)
        if self.history is not None:
            self._try(self.history.begin, state, since)

    def _tell_nodes(self, state: State, done: Step) -> None:
        for name, line in done.node_transitions:
            if line.state == line.before:
                continue
            status = line.state
            tell = self._log.warning if status in (NodeStatus.SUSPECT, NodeStatus.LOST) else self._log.info
            tell(f"node {name} is {status}", cause=render(line.reason))
            node = state.nodes.get(name)
            if (
                self.streams is not None
                and status in (*ABSENT, NodeStatus.GONE)
                and (node is None or node.status in ABSENT)
            ):
                self._try(self.streams.close, name)

    def _try(self, effect: Callable[..., Any], *args: Any) -> bool:
        try:
            effect(*args)
        except Exception:
            self.failed += 1
            self._log.error("an effect failed", effect=getattr(effect, "__qualname__", str(effect)), exc_info=True)
            return False
        return True
