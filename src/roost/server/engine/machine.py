"""The engine without I/O: events in, effects out. The asyncio engine and the fault simulator carry the effects out.

Take a batch, step, commit, and only then act. A commit that failed throws the state away: it was never acted on, and
what is stored is loaded again. Time is an argument, in milliseconds of the server's own clock.

A step that is long pauses, so that agents are read and answered meanwhile. Their heartbeats go into the same step.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from roost.core.replica import follow, mirror, take_over
from roost.core.state.outcome import Step
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.state.weight import weight
from roost.core.step import begin, conclude, handle
from roost.model.errors import NoService
from roost.model.events import AttributedRequest, Event, HeartbeatsReceived, ReadingPaused, Request, inner
from roost.model.protocol import Usage
from roost.model.records.opaque import By
from roost.model.states import ABSENT
from roost.ports.store import ANYBODY, Change, CommitFailure, Fenced, InDoubt, LoadFailure, News, Snapshot
from roost.server.cluster.machine import Backoff, LeadershipMachine, Load
from roost.server.engine.role import Following, Holding, Leading, Role, Starting, Stopped

INBOX_MAX = 20_000  # events waiting: beyond this, requests are refused rather than kept waiting for seconds
BATCH_UNITS = 8_000  # of work per step (see `core.state.weight`): 80 ms in pauses of 5; a heavier event is alone
SLICE_UNITS = 500  # of work before a step pauses: 5 ms, twice as long on a busy machine; a pause costs 0.1 ms

LET_GO = "this server has let go of the lead"
STOPPING = "the server is stopping"


class Pause(NamedTuple):
    """The step is long: let others have their turn, then `go_on`."""


class CommitChanges(NamedTuple):
    """Make this durable, then say how that went: `committed` or `commit_failed`."""

    epoch: int
    changes: Sequence[Change]


class Act(NamedTuple):
    """A step is durable: carry out what it decided."""

    batch: list[Event]
    done: Step


class AnswerRequest(NamedTuple):
    """The outcome of a request: a value, or the error it is refused with."""

    request: int
    value: Any


class Mirrored(NamedTuple):
    changes: Sequence[Change]


class ResetExecutor(NamedTuple):
    """The state is thrown away: end all streams, so that agents say hello again."""


class Began(NamedTuple):
    """This server decides from now on, from these records (only if it was asked for them)."""

    snapshot: Snapshot | None
    unclean: bool


class SleepUntil(NamedTuple):
    """Take the next turn then, or as soon as an event comes in; None: not before."""

    at_ms: int | None


class Release(NamedTuple):
    """Give up the lead in the store, then say `released`."""

    epoch: int
    successor: str


class StandBy(NamedTuple):
    """Follow the leader and compete with the other servers until `elected`."""


#: `Load` is for a store that no other server uses: load it, say `mirrored`, take its lead and say `elected`; if one of
#: them fails, say `out_of_touch`.
#: Every list of effects ends with the one that says what comes next, one of the last six; or it has stopped.
Waiting = Pause | CommitChanges | SleepUntil | Release | Load | StandBy
Effect = Act | AnswerRequest | Mirrored | ResetExecutor | Began | Waiting


class EngineMachine:
    """One state and its one writer. Whatever it is asked to give up, it gives up between two turns."""

    def __init__(
        self, settings: Settings, leadership: LeadershipMachine | None = None,
        records_of: Callable[[State], list[Change]] | None = None, slice_units: int = SLICE_UNITS,
    ) -> None:  # fmt: skip
        self.role: Role = Starting()
        self.state = State(settings)
        self.epoch = 0  # of this server's last lead
        self.steps = 0
        self.events = 0
        self.leadership = leadership
        self.inbox: list[Event] = []
        self.pending: dict[int, None] = {}  # requests without an outcome
        self.deciding: Act | None = None  # what is being decided or committed
        self._paused: Iterator[int] | None = None  # the rest of a step that has paused
        self._settings = settings
        self._slice_units = slice_units
        self._records_of = records_of  # None: what it begins with is not recorded
        self._is_mirror = False  # the state shows what was once durable
        self._heard: dict[str, tuple[int, int]] = {}
        self._usage: dict[str, Usage] = {}
        self._unread_ms = 0
        self._requests = 0
        self._successor = ""
        self._overtaken: Fenced | None = None
        self._is_stopping = False
        self._backoff = Backoff()

    @property
    def is_leading(self) -> bool:
        return isinstance(self.role, Leading)

    @property
    def is_deciding(self) -> bool:
        """Whether the state has what is not durable: a step has paused, or its commit is in progress."""
        return self.deciding is not None

    @property
    def is_readable(self) -> bool:
        """Whether the state is durable, once nothing is being decided."""
        return self._is_mirror and not isinstance(self.role, Starting | Stopped)

    @property
    def is_following(self) -> bool:
        return self._is_mirror and isinstance(self.role, Following | Holding) and not self.role.trouble

    @property
    def trouble(self) -> str:
        """Why nothing can be decided here; empty: this server leads, or has just begun to load."""
        return self.role.trouble or ("another server leads" if isinstance(self.role, Following | Holding) else "")

    # events and requests

    def tell(self, event: Event) -> None:
        self.inbox.append(event)

    def ask(self, make: Callable[[int], Event], by: By | None, now: int) -> int | NoService:
        """Put a request in: its number, for which there will be one AnswerRequest. `by` goes into the audit log."""
        if not self.is_leading:
            return self.refusal()
        if self.leadership is not None and not self.leadership.is_sure(now):
            return NoService("the store does not answer: whether this server still leads is not known")
        if len(self.inbox) >= INBOX_MAX:
            return NoService("the server has more requests than it can take; try again in a moment", code="busy")
        self._requests += 1
        self.pending[self._requests] = None
        event = make(self._requests)
        self.inbox.append(AttributedRequest(by, event) if by is not None and isinstance(event, Request) else event)
        return self._requests

    def refusal(self) -> NoService:
        return NoService(self.trouble or "the server is starting")

    def heard(self, node: str, session: int, usage: Usage | None, now: int) -> bool:
        """A sign of life. It goes into the next step, whenever that is; False: this session is over, do not answer.

        The answer renews the agent's lease, so it must not be given for a node that the core has declared lost: the
        state is asked at this very moment, and the sign is in the next step's events before any loss is decided.
        While the store is away no server can declare a node lost, and agents are answered for a while all the same.
        """
        if self.leadership is not None and not self.leadership.may_answer(now):
            return False
        if not isinstance(self.role, Leading):
            return isinstance(self.role, Holding) and self.role.sessions.get(node) == session
        existing = self.state.nodes.get(node)
        if existing is None or existing.session != session or existing.status in ABSENT:
            return False
        self._heard[node] = (session, now)
        if usage is not None:
            self._usage[node] = msgspec.structs.replace(usage, at_ms=now)
        return True

    def unread(self, for_ms: int) -> None:
        """Nothing was read for so long. The next step knows it before it looks at any lease."""
        self._unread_ms += for_ms

    # deciding

    def turn(self, now: int) -> list[Effect]:
        """Decide on all pending events, or give up the lead if that was requested."""
        assert isinstance(self.role, Leading) and not self.is_deciding
        if self._is_stopping and self.leadership is None:
            return self.stopped()
        # What a takeover has noted must be durable first: the next leader may have to wait for an earlier one.
        if (self._is_stopping or self._successor) and not self.state.dirty:
            return self._let_go()
        if self._overtaken is not None:
            return self._fall(self._overtaken)
        batch = self._take_batch()
        self.deciding = Act([], begin(self.state, now))
        self._paused = self._decide(batch, *self.deciding)
        return self.go_on()

    def go_on(self) -> list[Effect]:
        """Decide until the step pauses again, or is complete."""
        assert self.deciding is not None and self._paused is not None
        units = 0
        for done in self._paused:
            units += done
            if units >= self._slice_units:
                return [Pause()]
        self._paused = None
        if self.deciding.done.changes:
            return [CommitChanges(self.epoch, self.deciding.done.changes)]
        decided, self.deciding = self.deciding, None
        return self._finish(decided)

    def _decide(self, batch: Sequence[Event], handled: list[Event], out: Step) -> Iterator[int]:
        """A step. Heartbeats of its pauses are part of it, before any loss is decided: they have been answered."""
        for event in batch:
            handled.append(event)
            yield from handle(self.state, out, event)
            for heartbeats in self._take_heartbeats():
                handled.append(heartbeats)
                yield from handle(self.state, out, heartbeats)
        yield from conclude(self.state, out)

    def committed(self, sent_ms: int) -> list[Effect]:
        """The commit that was sent to the store then is durable."""
        assert self.deciding is not None
        if self.leadership is not None:
            self.leadership.committed(sent_ms)
        decided, self.deciding = self.deciding, None
        return self._finish(decided)

    def commit_failed(self, failure: CommitFailure) -> list[Effect]:
        return self._fall(failure)

    def _take_batch(self) -> list[Event]:
        size = units = 0
        while size < len(self.inbox) and (not size or units + weight(self.inbox[size]) <= BATCH_UNITS):
            units += weight(self.inbox[size])
            size += 1
        batch, self.inbox = self.inbox[:size], self.inbox[size:]
        paused = [ReadingPaused(self._unread_ms)] if self._unread_ms else []
        self._unread_ms = 0
        return [*paused, *self._take_heartbeats(), *batch]

    def _take_heartbeats(self) -> list[Event]:
        if not self._heard and not self._usage:
            return []
        beats = tuple((node, session, at_ms) for node, (session, at_ms) in self._heard.items())
        usage = tuple(self._usage.items())
        self._heard, self._usage = {}, {}
        return [HeartbeatsReceived(beats, usage)]

    def _finish(self, decided: Act) -> list[Effect]:
        self.steps += 1
        self.events += len(decided.batch)
        effects: list[Effect] = [decided]
        for request, value in decided.done.replies:
            self.pending.pop(request, None)
            effects.append(AnswerRequest(request, value))
        is_due = self.inbox or self._is_stopping or self._successor or self._overtaken is not None
        effects.append(SleepUntil(0 if is_due else decided.done.wake_at_ms))
        return effects

    # giving up the lead

    def let_go(self, successor: str) -> None:
        """Let another server lead: the one of this name, or any."""
        if self.is_leading and self.leadership is not None:
            self._successor = successor

    def overtaken(self, failure: Fenced) -> None:
        self._overtaken = failure

    def stop(self) -> None:
        self._is_stopping = True

    def _let_go(self) -> list[Effect]:
        assert self.leadership is not None
        successor, self._successor = self._successor or ANYBODY, ""
        self.role = Following(LET_GO)
        self.leadership.let_go()
        return [Release(self.epoch, successor)]

    def released(self) -> list[Effect]:
        return self._fall(None)

    def stopped(self) -> list[Effect]:
        self.role = Stopped(STOPPING)
        return self._refuse(NoService(STOPPING), in_doubt=False)

    def _fall(self, failure: CommitFailure | None) -> list[Effect]:
        """This server no longer leads; its state is void. If only the store is away, sessions of agents are kept."""
        is_away = failure is not None and not isinstance(failure, Fenced)
        trouble = f"the store cannot be written: {failure}" if failure else LET_GO
        effects = self._refuse(NoService(trouble), in_doubt=isinstance(failure, InDoubt))
        self.inbox.clear()
        self._successor, self._overtaken, self._is_mirror = "", None, False
        if is_away:
            sessions = {name: node.session for name, node in self.state.nodes.items() if node.status not in ABSENT}
            self.role = Holding(trouble, sessions)
        else:
            self.role = Starting(trouble) if self.leadership is None else Following(trouble)
            effects.append(ResetExecutor())
        effects.append(StandBy() if self.leadership is not None else Load(0))
        return effects

    def _refuse(self, error: NoService, *, in_doubt: bool) -> list[Effect]:
        """`in_doubt`: the commit in progress may be durable, so a client must check before it asks again."""
        unsure = NoService(f"{error.message}; whether this was done is not known", code="outcome_unknown")
        batch = self.deciding.batch if self.deciding is not None else ()
        taken = {happened.request for event in batch if isinstance(happened := inner(event), Request)}
        effects: list[Effect] = [
            AnswerRequest(request, unsure if in_doubt and request in taken else error) for request in self.pending
        ]
        self.pending, self.deciding = {}, None
        return effects

    # taking the lead, alone or among others

    def start(self) -> list[Effect]:
        if self.leadership is None:
            return [Load(0)]
        self.role = Following()
        return [StandBy()]

    def elected(self, epoch: int, now: int, *, unclean: bool) -> list[Effect]:
        """This server leads, and its mirror holds everything that was ever committed: decide from now on.

        Agents register again, and the same orders are derived again.
        """
        effects: list[Effect] = [ResetExecutor()] if isinstance(self.role, Holding) else []
        state = self.state
        recorded = Snapshot(state.revision, self._records_of(state)) if self._records_of is not None else None
        take_over(state, now, unclean=unclean)
        self._unread_ms = 0  # its leases begin now
        self.epoch, self.role = epoch, Leading()
        self._backoff.reset()
        return [*effects, Began(recorded, unclean), SleepUntil(0)]

    # before this server leads

    def mirrored(self, snapshot: Snapshot) -> None:
        self.state, self._is_mirror = mirror(snapshot, self._settings), True
        self._in_trouble("")

    def followed(self, update: News) -> list[Effect]:
        """Another server has committed this. If there is another leader, agents belong to it."""
        effects: list[Effect] = []
        if isinstance(self.role, Holding) and update.lead.epoch <= self.epoch:
            self._in_trouble("")
        else:
            if isinstance(self.role, Holding):
                effects.append(ResetExecutor())
            self.role = Following()
        if update.changes or update.revision != self.state.revision:
            follow(self.state, update.revision, update.changes)
            effects.append(Mirrored(update.changes))
        return effects

    def out_of_touch(self, failure: Fenced | LoadFailure) -> Load:
        """The store cannot be read. It is tried again, less and less often."""
        self._in_trouble(f"the store is away: {failure}")
        return self._backoff.again()

    def _in_trouble(self, trouble: str) -> None:
        assert isinstance(self.role, Starting | Following | Holding)
        self.role = msgspec.structs.replace(self.role, trouble=trouble)
