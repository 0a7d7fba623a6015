"""The agents' sessions without I/O: hellos, orders, beats and what answers them. The gateway only moves frames.

It tells the engine at once what agents say: the engine puts it into its inbox, and asks nothing back. Time is an
argument, in milliseconds of the server's own clock.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from roost.core.state.outcome import Orders
from roost.model.events import Event, NodeDisconnected, ReportsReceived
from roost.model.protocol import Beat, Usage
from roost.server.agents.outbox import Outbox

LACKING_MS = 1_000  # an agent that is behind for longer has lost a delta
REPORTS_MAX = 200  # in one event: a step must not take longer because of one agent
COMMIT_MS_MAX = 500  # a beat with reports is answered after their commit, but a slow disk must not end leases


class Inbox(Protocol):
    """The engine, as far as sessions need it."""

    def tell(self, event: Event) -> None:
        """Put in an event without an answer."""

    def heard(self, node: str, session: int, usage: Usage | None) -> bool:
        """A sign of life; False: this session is over, do not answer."""

    @property
    def lease_ms(self) -> int:
        """The lease that agents are sent."""


class BeatReply(Enum):
    NOW = "now"
    SOON = "soon"  # with others, a little later
    AFTER_COMMIT = "after its reports are durable"
    MISSING_BEATS = "not at all: beats before it are missing"
    SESSION_OVER = "not at all: the session is over"


@dataclass(slots=True, eq=False)
class Session:
    node: str
    outbox: Outbox
    sequence: int = 0  # of the newest beat
    waiting_since_ms: int = 0  # a beat with reports that is not answered yet
    behind_since_ms: int = 0


class SessionMachine:
    def __init__(self, engine: Inbox) -> None:
        self._engine = engine
        self.sessions: dict[str, Session] = {}
        self._joining: Counter[str] = Counter()  # nodes whose hello is being decided
        self._early: dict[tuple[str, int], Outbox] = {}  # orders that came before their session began

    # a session begins and ends

    def greeted(self, node: str) -> None:
        """The engine is asked about a hello. Its orders come before its answer, and are kept in `_early`."""
        self._joining[node] += 1

    def decided(self, node: str, session: int | None) -> Outbox | None:
        """The hello got a session; None: it was refused, or its stream broke. Returns its early orders."""
        outbox = self._early.pop((node, session), None) if session is not None else None
        self._joining[node] -= 1
        if not self._joining[node]:
            del self._joining[node]
            for name, early in [key for key in self._early if key[0] == node]:
                del self._early[name, early]
                self._engine.tell(NodeDisconnected(name, early))
        return outbox

    def began(self, node: str, outbox: Outbox) -> Session:
        """A session replaces an older one of the node, whose stream the gateway has ended."""
        session = self.sessions[node] = Session(node, outbox)
        return session

    def ended(self, session: Session) -> None:
        if self.sessions.get(session.node) is session:
            del self.sessions[session.node]
        self._engine.tell(NodeDisconnected(session.node, session.outbox.session))

    def lost(self, node: str) -> Session | None:
        """The session that must end because its node was lost or removed: its agent registers again."""
        return self.sessions.get(node)

    # what is durable goes out

    def ordered(self, orders: Orders) -> Session | None:
        """Orders for one node. Returns their session; without one, the node is disconnected."""
        session = self.sessions.get(orders.node)
        if session is not None and session.outbox.session == orders.session:
            session.outbox.order(orders)
            return session
        if orders.node in self._joining:
            self._early.setdefault((orders.node, orders.session), Outbox(orders.session)).order(orders)
        else:
            self._engine.tell(NodeDisconnected(orders.node, orders.session))
        return None

    def acknowledged(self, node: str, sequence: int) -> Session | None:
        """The reports of this node, up to this beat, are durable."""
        session = self.sessions.get(node)
        if session is not None:
            session.waiting_since_ms = 0
            session.outbox.acknowledge(sequence)
        return session

    # what agents say

    def signed(self, session: Session, beat_session: int, sequence: int, generation: int, sent_ms: int) -> bool:
        """A beat that only renews the lease is answered soon. False: process all of it with `beat`."""
        outbox = session.outbox
        if (
            beat_session != outbox.session
            or sequence != session.sequence + 1
            or generation != outbox.generation
            or session.waiting_since_ms
            or not self._engine.heard(session.node, outbox.session, None)
        ):
            return False
        session.sequence = sequence
        outbox.echo(sent_ms, self._engine.lease_ms)
        return True

    def beat(self, session: Session, beat: Beat, now: int) -> BeatReply:
        """The lease is renewed at once; reports are answered after their commit."""
        node, outbox, engine = session.node, session.outbox, self._engine
        if beat.sequence > session.sequence + 1:  # an acknowledgement covers all beats before it
            return BeatReply.MISSING_BEATS
        session.sequence = max(session.sequence, beat.sequence)
        if beat.session != outbox.session or not engine.heard(node, outbox.session, beat.usage):
            return BeatReply.SESSION_OVER
        outbox.echo(beat.sent_ms, engine.lease_ms)
        lacking = beat.lacking or _is_behind(session, beat.generation, now)
        if beat.reports or lacking:
            *parts, last = [beat.reports[at : at + REPORTS_MAX] for at in range(0, len(beat.reports) or 1, REPORTS_MAX)]
            for part in parts:  # the beat is acknowledged with its last part
                engine.tell(ReportsReceived(node, outbox.session, beat.sequence - 1, part, received_ms=now))
            engine.tell(ReportsReceived(node, outbox.session, beat.sequence, last, lacking, now))
            session.waiting_since_ms = session.waiting_since_ms or now
        if beat.leaving:
            engine.tell(NodeDisconnected(node, outbox.session, leaving=True))
        if not session.waiting_since_ms:
            return BeatReply.SOON
        return BeatReply.NOW if now - session.waiting_since_ms > COMMIT_MS_MAX else BeatReply.AFTER_COMMIT


def _is_behind(session: Session, generation: int, now: int) -> bool:
    if generation >= session.outbox.written:  # orders that were not written yet are not missing
        session.behind_since_ms = 0
        return False
    session.behind_since_ms = session.behind_since_ms or now
    if now - session.behind_since_ms <= LACKING_MS:
        return False
    session.behind_since_ms = now
    return True
