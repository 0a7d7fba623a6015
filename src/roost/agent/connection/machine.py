"""The agent's connection as a state machine: which server to try, when to send a heartbeat, when to give up and retry.

No I/O, no clock: the caller passes the time, carries out the effects in order and calls `tick` at `next_ms`. stream.py
does so with gRPC, the fault simulator on its heap. All times are milliseconds of this host's monotonic clock.

A heartbeat costs more than its contents, so reports share one. The first report goes out at once; while more follow
quickly, each waits a moment for others, and the server decides about all of them at once.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto

import msgspec

from roost import __version__
from roost.agent.actor import Action, Actor
from roost.agent.connection.server_list import ServerList
from roost.model.protocol import Answer, Beat, Hello, Usage, Welcome, version_refusal

BEATS_PER_LEASE = 4
FLUSH_DELAY_MS = 2  # how long a report waits for others
BUSY_MS = 50  # ... if the last ones are not longer ago than this
WELCOME_MS_MAX = 10_000
WELCOME_MS_MAX_MANY = 1_500  # where there are other servers: one that hangs must not cost us our lease
SILENCE_SHARE = 0.75  # of a lease without an answer: the stream is dead, whatever TCP says
SILENCE_SHARE_MANY = 0.4  # ... where another server may lead by now
FIND_LEADER_EVERY_MS = 1_000  # asking the other servers, while ours does not know whether it still leads
USAGE_MS = 10_000
RETRY_MS_MIN, RETRY_MS_MAX = 30, 200  # a server that restarts is found again within a fraction of a lease
REFUSED_MS = 5_000
NAME_TAKEN_MS = 1_000  # the last agent of our name may be about to end
NAME_TAKEN_TRIES = 60  # then it is not
NO_WELCOME = "the server did not welcome us"
NOT_UNDERSTOOD = f"it sent what roost {__version__} does not know, and nothing of it is followed; update this agent"
QUIET_TRIES = 15  # two seconds: `roost up` writes certificates for its nodes while they start


class StreamEnd(Enum):
    CLOSED = auto()  # by the server, in order
    BROKEN = auto()
    BAD_CERTIFICATE = auto()
    REFUSED = auto()
    NOT_ROOST = auto()
    NAME_TAKEN = auto()
    NOT_UNDERSTOOD = auto()


REFUSALS = {
    StreamEnd.BAD_CERTIFICATE: "the server does not take our certificate",
    StreamEnd.REFUSED: "the server refuses this agent",
    StreamEnd.NOT_ROOST: "there is no Roost server at this address",
    StreamEnd.NAME_TAKEN: "our name is taken",
    StreamEnd.NOT_UNDERSTOOD: "this agent does not understand the server",
}


class ReadCertificate(msgspec.Struct, frozen=True):
    """Read our certificate; answer with `certified` or `uncertified`."""


class OpenStream(msgspec.Struct, frozen=True):
    """Open a stream to this server; answer with `opened` or `closed`."""

    address: str


class SendFrame(msgspec.Struct, frozen=True):
    """Send this on the stream; answer with `sent`. After the last frame our side of the stream is closed."""

    frame: Hello | Beat
    last: bool = False


class CloseStream(msgspec.Struct, frozen=True):
    """Drop the stream; no answer is expected."""


class FindLeader(msgspec.Struct, frozen=True):
    """Ask these servers whether they lead; answer with `leader_found`."""

    addresses: tuple[str, ...]


class Connected(msgspec.Struct, frozen=True):
    """A session begins, perhaps with another server. This comes before everything that the session orders."""


class LearnServers(msgspec.Struct, frozen=True):
    """Remember these servers for the next start."""

    servers: tuple[str, ...]
    series: int = 0  # of their certificates


class LogLine(msgspec.Struct, frozen=True):
    text: str


StreamEffect = ReadCertificate | OpenStream | SendFrame | CloseStream | FindLeader | LearnServers
Effect = StreamEffect | Connected | LogLine | Action


class Phase(Enum):
    WAITING = auto()  # for the next attempt
    OPENING = auto()
    GREETING = auto()  # hello was sent
    CONNECTED = auto()
    LEAVING = auto()  # the last heartbeat was sent; the server closes the stream
    OVER = auto()


class LinkMachine:
    """One stream at a time, opened again whenever it breaks. Runs go on meanwhile."""

    def __init__(self, actor: Actor, given: str, chance: Callable[[], float], now: int = 0) -> None:
        self.phase = Phase.WAITING
        self.address = ""  # of the server we are connected to, or try
        self.tries = 0  # since the last session
        self.servers = ServerList(given)
        self._actor = actor
        self._chance = chance  # uniform in 0 to 1
        self._enrolled: tuple[str, ...] = ()  # the servers that our certificate names
        self._deadline_ms = now  # of this phase: when to try again, or when a hello was in vain
        self._logged = ""
        self._sending = False
        self._sent_ms = 0
        self._reported_ms = 0  # when we last had reports
        self._heard_ms = 0
        self._beat_at_ms = 0  # when a heartbeat is due without reports
        self._usage_at_ms = 0
        self.usage_is_urgent = False  # each heartbeat has it: it says what changes soon
        self._unanswered = False
        self._unsure = False  # our server does not know whether it still leads
        self._finding = False
        self._find_at_ms = 0
        self._leaving = False  # every heartbeat says so
        self._ending = False  # the next heartbeat is the last

    # time

    def next_ms(self) -> int | None:
        """When `tick` has something to do; None: not before something else happens."""
        if self.phase in (Phase.WAITING, Phase.GREETING):
            return self._deadline_ms
        if self.phase is not Phase.CONNECTED:
            return None
        if self._sending:
            return self._silence_ms() if self._unanswered else None
        at_ms = 0 if self._ending else self._next_beat_ms()
        return min(at_ms, self._find_at_ms) if self._unsure and not self._finding else at_ms

    def is_usage_due(self, now: int) -> bool:
        is_wanted = self.usage_is_urgent or now >= self._usage_at_ms
        next_ms = self.next_ms() if self.phase is Phase.CONNECTED and is_wanted else None
        return next_ms is not None and next_ms <= now

    def tick(self, now: int, usage: Usage | None = None) -> list[Effect]:
        match self.phase:
            case Phase.WAITING if now >= self._deadline_ms:
                self.phase = Phase.OPENING
                return [ReadCertificate()]
            case Phase.GREETING if now >= self._deadline_ms:
                return self._abandon("no answer to our hello", now)
            case Phase.CONNECTED:
                if self._unanswered and now >= self._silence_ms():
                    return self._abandon("the server has stopped answering", now)
                effects = self._find_leader(now)
                if not self._sending and (self._ending or now >= self._next_beat_ms()):
                    effects.append(self._beat(now, usage))
                return effects
        return []

    # the stream

    def certified(self, servers: Iterable[str]) -> list[Effect]:
        self._enrolled = tuple(servers)
        self.address = self.servers.next(self._enrolled)
        return [OpenStream(self.address)]

    def uncertified(self, reason: str, now: int, *, exists: bool) -> list[Effect]:
        """There is no certificate of use. One that does not exist yet may be written soon."""
        if self._ending:
            self.phase = Phase.OVER
            return []
        self.tries += 1
        effects = self._log(reason) if exists or self.tries > QUIET_TRIES else []
        self._wait(REFUSED_MS if exists else self._retry_ms(), now)
        return effects

    def opened(self, own_address: str, now: int) -> list[Effect]:
        """The stream is there. `own_address`: where others reach this machine, if that was found out."""
        if self.phase is not Phase.OPENING:
            return []
        self._actor.located(own_address)
        self.phase = Phase.GREETING
        self._deadline_ms = now + (WELCOME_MS_MAX_MANY if self._has_others() else WELCOME_MS_MAX)
        self._sent_ms = self._heard_ms = now
        self._sending = True
        return [SendFrame(self._actor.hello(now))]

    def sent(self) -> None:
        self._sending = False

    def received(
        self, frame: Welcome | Answer | None, now: int, servers: tuple[str, ...] = (), series: int = 0, *,
        unsure: bool = False,
    ) -> list[Effect]:  # fmt: skip
        """A frame of the server, None: it has something that this agent does not know, and is not half followed.

        A welcome names the other servers and the series of their certificates; an answer says whether the server may
        lead no more.
        """
        if self.phase not in (Phase.GREETING, Phase.CONNECTED, Phase.LEAVING):
            return []
        if frame is None:
            return self._lost(StreamEnd.NOT_UNDERSTOOD, NOT_UNDERSTOOD, now, [CloseStream()])
        if self.phase is Phase.GREETING:
            if isinstance(frame, Welcome):
                return self._welcomed(frame, servers, series, now)
            return self._lost(StreamEnd.BROKEN, NO_WELCOME, now, [CloseStream()])
        self._heard_ms = now
        if isinstance(frame, Welcome):
            return [*self._actor.welcomed(frame, now)]
        self._unsure = self._unsure or unsure
        if frame.echo_ms >= self._sent_ms:
            self._unanswered = False
        actions = self._actor.answered(frame, now)
        if frame.lease_ms:
            self._plan_beat(self._sent_ms)
        return [*actions, *self._find_leader(now)]

    def leader_found(self, address: str, now: int) -> list[Effect]:
        self._finding = False
        self._find_at_ms = now + FIND_LEADER_EVERY_MS
        if not address or self.phase is not Phase.CONNECTED:
            return []
        self.servers.refused(address)
        return self._lost(StreamEnd.BROKEN, f"the server at {address} leads by now", now, [CloseStream()])

    def closed(self, end: StreamEnd, reason: str, now: int, leader: str = "") -> list[Effect]:
        """The stream ended, or could not be opened. A server that does not lead may say which one does."""
        if self.phase in (Phase.WAITING, Phase.OVER):
            return []
        if self.phase is Phase.GREETING and end is StreamEnd.CLOSED:
            end, reason = StreamEnd.BROKEN, NO_WELCOME
        return self._lost(end, reason, now, [], leader)

    def greet_again(self, reason: str, now: int) -> list[Effect]:
        """Register anew, with what this node offers by now. Before the first session there is nothing to do."""
        if self.phase is not Phase.CONNECTED or self._ending:
            return []
        return self._lost(StreamEnd.CLOSED, reason, now, [CloseStream()])

    def leave(self) -> None:
        """The node is going out of service: from the next heartbeat on the server knows."""
        self._leaving = True

    def goodbye(self) -> None:
        """Send what is left and that we are gone; `phase` is OVER once the server has closed the stream."""
        self._leaving = self._ending = True
        if self.phase is Phase.WAITING:
            self.phase = Phase.OVER

    def known_servers(self) -> tuple[str, ...]:
        return self.servers.all(self._enrolled)

    # inside

    def _welcomed(self, welcome: Welcome, servers: tuple[str, ...], series: int, now: int) -> list[Effect]:
        if refusal := version_refusal(welcome.protocol, welcome.software, mine="agent", other="server"):
            return self._lost(StreamEnd.NOT_UNDERSTOOD, refusal, now, [CloseStream()])
        self.servers.welcomed(self.address, servers)
        self.phase = Phase.CONNECTED
        self.tries = 0
        self._unanswered = self._unsure = self._finding = False
        actions = self._actor.welcomed(welcome, now)
        self._plan_beat(self._sent_ms)
        line = self._log(f"connected to {self.address} as {self._actor.node}")
        return [*line, Connected(), *actions, LearnServers(servers, series)]

    def _beat(self, now: int, usage: Usage | None) -> SendFrame:
        """The next heartbeat. A regular one repeats the reports that were not acknowledged."""
        regular = now >= self._beat_at_ms
        if usage is not None:
            self._usage_at_ms = now + USAGE_MS
        beat = self._actor.beat(now, usage, again=regular or self._ending, leaving=self._leaving, last=self._ending)
        self._sent_ms, self._unanswered, self._sending = now, True, True
        if beat.reports:
            self._reported_ms = now
        self._plan_beat(now)
        if self._ending:
            self.phase = Phase.LEAVING
        return SendFrame(beat, last=self._ending)

    def _find_leader(self, now: int) -> list[Effect]:
        if not self._unsure or self._finding or now < self._find_at_ms or self.phase is not Phase.CONNECTED:
            return []
        self._unsure, self._finding = False, True
        return [FindLeader(tuple(item for item in self.known_servers() if item != self.address))]

    def _abandon(self, reason: str, now: int) -> list[Effect]:
        self.servers.silent(self.address)
        return self._lost(StreamEnd.BROKEN, reason, now, [CloseStream()])

    def _lost(
        self, end: StreamEnd, reason: str, now: int, effects: list[Effect], leader: str = ""
    ) -> list[Effect]:  # fmt: skip
        if end is not StreamEnd.CLOSED and not self.servers.knows_leader:
            self.servers.refused(leader)
        self._actor.parted()
        self._sending = False
        if self._ending:
            self.phase = Phase.OVER
            return effects
        self.tries += 1
        self._wait(self._pause_ms(end), now)
        return effects + self._log(f"{REFUSALS.get(end, f'not connected to {self.address}')}: {reason}")

    def _wait(self, pause_ms: int, now: int) -> None:
        self.phase = Phase.WAITING
        self._deadline_ms = now + pause_ms

    def _pause_ms(self, end: StreamEnd) -> int:
        if end not in REFUSALS:
            return self._retry_ms()
        patient = end is StreamEnd.NAME_TAKEN and self.tries <= NAME_TAKEN_TRIES
        return NAME_TAKEN_MS if patient else REFUSED_MS

    def _retry_ms(self) -> int:
        """Twice as long after each failure, up to a limit, and not at the same time as all other agents."""
        longest_ms = min(RETRY_MS_MIN << min(self.tries - 1, 10), RETRY_MS_MAX)
        return int(longest_ms * (1 + self._chance()) / 2)

    def _next_beat_ms(self) -> int:
        """When to send next: a sign of life, or reports, but not too soon after the last ones."""
        due = self._actor.next_due()
        if due is None and not self._actor.lacking:
            return min(self._beat_at_ms, self._silence_ms()) if self._unanswered else self._beat_at_ms
        delay_ms = FLUSH_DELAY_MS if due is not None and due - self._reported_ms < BUSY_MS else 0
        return min(self._beat_at_ms, (due or 0) + delay_ms)

    def _plan_beat(self, now: int) -> None:
        self._beat_at_ms = now + self._actor.lease_ms // BEATS_PER_LEASE

    def _silence_ms(self) -> int:
        share = SILENCE_SHARE_MANY if self._has_others() else SILENCE_SHARE
        return self._heard_ms + int(self._actor.lease_ms * share)

    def _has_others(self) -> bool:
        return len(self.known_servers()) > 1

    def _log(self, text: str) -> list[Effect]:
        """The same line is not written twice in a row."""
        if text == self._logged:
            return []
        self._logged = text
        return [LogLine(text)]
