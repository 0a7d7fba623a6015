"""An agent process in the simulated world: the real mind from agent/actor.py, driven as agent/link.py drives it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from roost.agent.actor import Action, Actor, Forget, Halt, Lease, Start
from roost.agent.launch import health, waits_for
from roost.model.frames import Answer, Run, Welcome
from roost.ports.driver import Ended, Event, Refused, Started, StepBegan
from roost.sim.net import Stream

if TYPE_CHECKING:
    from roost.sim.host import Host

PIPE_MS = 1  # between agent and keeper, both ways; in order, and nothing is lost while both live
BEATS_PER_LEASE = 4
WELCOME_MS = 10_000  # as in agent/link.py: a hello that is not answered by then was in vain
BACKOFF_MS = (25, 1_000)
LEASE_STEPS = 16  # as in agent/service.py: a lease is told to the keeper when it grew by this part


class Agent:
    """One life of an agent process."""

    def __init__(self, host: "Host") -> None:
        self.host = host
        self.actor = Actor(host.node, host.identity, host.facts)
        self.alive = True
        self.hung = False
        self.leaving = False
        self.stream: Stream | None = None
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._tries = 0  # to find a server
        self._lease_ms = 0  # what the keeper was told
        self._unanswered = False
        self._heard_ms = 0
        self._beat_ms = 0
        self._tick_ms: int | None = None

    def begin(self) -> None:
        """Take over from the keeper what an earlier agent had started, then look for the server."""
        now, keeper = self._now(), self.host.keeper
        greeting = keeper.connect(lambda event: self._later(PIPE_MS, self._happened, event))
        self._lease_ms = greeting.lease
        for known in greeting.runs:
            run = keeper.run_of(known)
            self.actor.restored(waits_for(run, known), now, stopping=known.state == "stopping")
            self._watch(run)
            if known.state != "waiting":
                self.actor.started(run.token, known.started_at, now)
                self._look_after(run.token)
            if known.step:
                self.actor.stepped(run.token, known.step, now)
            if known.ended is not None:
                self._ended(known.ended)
        self._connect()

    # hanging and dying

    def hang(self) -> None:
        """SIGSTOP."""
        self.hung = True

    def wake(self) -> None:
        """SIGCONT: everything that came in meanwhile is dealt with now."""
        self.hung = False
        backlog, self._backlog = self._backlog, []
        for action, given in backlog:
            self._awake(action, *given)

    def die(self, *, quietly: bool = False) -> None:
        """kill -9. Orders already written to the keeper may or may not arrive."""
        self.alive = False
        if self.stream is not None:
            self.host.net.close(self.stream, up=True, quietly=quietly)

    def _awake(self, action: Callable[..., None], *given: Any) -> None:
        if self.hung:
            self._backlog.append((action, given))
        elif self.alive:
            action(*given)

    # the stream

    def _connect(self) -> None:
        if self.stream is not None or not self.host.up:
            return
        server = self.host.door.find(self._tries)
        if server is None or self.host.net.is_blocked(self.host.name, server.name):
            self._tries += 1  # another server, the next time
            self._later(self.host.world.between(*BACKOFF_MS), self._connect)
            return
        self.stream = self.host.net.open(self.host.name, self, server, server.name)
        hello = self.actor.hello(self._now())
        self.host.world.tell(self.host.name, f"hello on {self.stream} with {[run.token for run, _ in hello.runs]}")
        self.host.net.send(self.stream, hello, up=True)
        self._heard_ms = self._now()
        self._plan(self._heard_ms + WELCOME_MS)

    def received(self, stream: Stream, frame: Any) -> None:
        """A frame from the server."""
        self._awake(self._receive, stream, frame)

    def closed(self, stream: Stream) -> None:
        """The stream broke."""
        self._awake(self._closed, stream)

    def _receive(self, stream: Stream, frame: Any) -> None:
        if stream is not self.stream:
            return
        now, session, generation = self._now(), self.actor.session, self.actor.generation
        self._heard_ms = now
        if isinstance(frame, Welcome):
            self.host.world.tell(self.host.name, f"welcomed in session {frame.session}, generation {frame.generation}")
            self._do(self.actor.welcomed(frame, now))
            self._beat_ms = now + self.actor.lease_ms // BEATS_PER_LEASE
        else:
            assert isinstance(frame, Answer)
            self._unanswered = False
            self._do(self.actor.answered(frame, now))
        self.host.checkers.followed(self.actor, session, generation)
        self._plan_next()

    def _closed(self, stream: Stream) -> None:
        if stream is self.stream:
            self.host.world.tell(self.host.name, f"sees {stream} end")
            self._part()

    def _part(self) -> None:
        self.stream = None
        self._tries += 1
        self.actor.parted()
        self._later(self.host.world.between(*BACKOFF_MS), self._connect)

    # beats

    def _tick(self, at_ms: int) -> None:
        if at_ms != self._tick_ms:
            return
        self._tick_ms = None
        stream, now = self.stream, self._now()
        if stream is None:
            return
        patience_ms = self._patience_ms()
        if now - self._heard_ms >= patience_ms and (self._unanswered or not self.actor.session):
            self.host.world.tell(self.host.name, f"gives up {stream}")
            self.host.net.close(stream, up=True, quietly=self.host.world.happens(0.3))
            self._part()
            return
        if self.actor.session:
            due = self.actor.next_due()
            regular = now >= self._beat_ms
            if regular or self.actor.lacking or self._is_done() or (due is not None and due <= now):
                self._beat(stream, now, again=regular)
        self._plan_next()

    def _beat(self, stream: Stream, now: int, *, again: bool) -> None:
        if again:
            self._beat_ms = now + self.actor.lease_ms // BEATS_PER_LEASE
        done = self._is_done()
        self.host.checkers.caught_up(self.actor)
        beat = self.actor.beat(now, again=again or done, leaving=done)
        self._unanswered = True
        if beat.reports or beat.lacking or beat.leaving:
            said = [f"{report.token} {report.state} {report.cause}".strip() for report in beat.reports]
            self.host.world.tell(self.host.name, f"beat {beat.sequence}: {said}{' lacking' * beat.lacking}")
        self.host.net.send(stream, beat, up=True)
        if done:
            self.host.world.tell(self.host.name, "says goodbye")
            self.leaving = False
            self.host.world.after(self.host.world.between(5, 50), self.host.leave_now, self)

    def _plan_next(self) -> None:
        if self.stream is None:
            return
        if not self.actor.session:
            self._plan(self._heard_ms + WELCOME_MS)
            return
        due = self.actor.next_due()
        at_ms = self._beat_ms if due is None else min(self._beat_ms, due)
        if self._unanswered:
            at_ms = min(at_ms, self._heard_ms + self._patience_ms())
        self._plan(self._now() if self.actor.lacking or self._is_done() else at_ms)

    def _is_done(self) -> bool:
        return self.leaving and all(each.state == "ended" for each in self.actor.attempts.values())

    def _patience_ms(self) -> int:
        return self.actor.lease_ms * 3 // 4 if self.actor.session else WELCOME_MS

    def _plan(self, at_ms: int) -> None:
        if self._tick_ms is None or at_ms < self._tick_ms:
            self._tick_ms = at_ms
            self.host.world.at(self.host.clock.true_ms(at_ms), self._awake, self._tick, at_ms)

    # the keeper

    def _happened(self, event: Event) -> None:
        now = self._now()
        if isinstance(event, Started):
            self.actor.started(int(event.id), event.at, now)
            self._look_after(int(event.id))
        elif isinstance(event, StepBegan):
            self.actor.stepped(int(event.id), event.step, now)
        elif isinstance(event, Ended):
            self._ended(event)
        elif isinstance(event, Refused) and event.id is not None and event.do in ("start", "stop"):
            self.actor.ended(int(event.id), "stopped", None, None, 0, event.error, now, now)
        self._plan_next()

    def _ended(self, event: Ended) -> None:
        self.actor.ended(
            int(event.id), event.cause, event.code, event.signal, event.step, event.error, event.at, self._now(),
            why=event.why,
        )  # fmt: skip

    def _do(self, actions: list[Action]) -> None:
        keeper, after = self.host.keeper, self.host.world.after
        for action in actions:
            if isinstance(action, Start):
                self._watch(action.run)
                after(PIPE_MS, self._order, keeper.start, action.run)
            elif isinstance(action, Halt):
                after(PIPE_MS, self._order, keeper.stop, action.token, action.grace_ms, action.cause)
            elif isinstance(action, Forget):
                after(PIPE_MS, self._order, keeper.forget, action.token)
            else:
                assert isinstance(action, Lease)
                if (
                    action.until_ms - self._lease_ms >= self.actor.lease_ms // LEASE_STEPS
                    or action.until_ms < self._lease_ms
                ):
                    self._lease_ms = action.until_ms
                    after(PIPE_MS, self._order, keeper.lease, action.until_ms)

    def _watch(self, run: Run) -> None:
        target = health(run, self.host.node, "", "")
        if target is not None:
            self.actor.watched(run.token, target.check)

    def _look_after(self, token: int) -> None:
        pause_ms = self.actor.next_look_ms(token, self._now())
        if pause_ms is not None:
            self._later(pause_ms, self._look, token)

    def _look(self, token: int) -> None:
        """A health check, which takes no time here."""
        well = self.host.keeper.is_well(token)
        self._do(self.actor.probed(token, well, "" if well else "the check failed", self._now()))
        self._look_after(token)
        self._plan_next()

    def _order(self, order: Callable[..., None], *given: Any) -> None:
        if self.host.keeper.alive and (self.alive or self.host.world.happens(0.5)):
            order(*given)

    def leave(self) -> None:
        """Everything here has been stopped: tell the rest and say goodbye."""
        self.leaving = True
        self._awake(self._plan_next)

    def _later(self, delay_ms: int, action: Callable[..., None], *given: Any) -> None:
        self.host.world.after(delay_ms, self._awake, action, *given)

    def _now(self) -> int:
        return self.host.clock.now_ms()
