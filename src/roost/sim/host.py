"""Hosts: a clock, a keeper that lives as long as the host, and agents that come and go, hang and wake."""

from collections.abc import Callable
from typing import Any, Protocol

from roost.agent.actor import Action, Actor, Forget, Halt, Lease, Start
from roost.model.frames import Answer, Welcome
from roost.model.node import Facts
from roost.ports.driver import Ended, Event, Refused, Started, StepBegan
from roost.sim.keeper import Keeper, Witness
from roost.sim.net import End, Net, Stream
from roost.sim.world import Clock, World

PIPE_MS = 1  # between agent and keeper, both ways; in order, and nothing is lost while both live
BEATS_PER_LEASE = 4
WELCOME_MS = 10_000  # as in agent/link.py: a hello that is not answered by then was in vain
BACKOFF_MS = (25, 1_000)
GRACE_MS = 500  # for runs when their host is shut down
FAREWELL_MS = 2_000  # an agent that was asked to end is gone by then, heard or not
RESTART_MS = (200, 1_200)  # until the keeper has a new agent
UPTIME_MS_MAX = 1_000_000_000  # what a host's clock may show as the world begins
BOOT_MS = 1_000  # what it shows when the keeper starts after a reboot
HANG_MS_MAX = 10_000  # an agent silent for longer is killed by its keeper


class Door(End, Protocol):
    """Where agents knock."""

    def reachable(self) -> bool:
        """Whether anybody listens."""


class Agent:
    """One life of an agent process."""

    def __init__(self, host: "Host", facts: Facts) -> None:
        self.host = host
        self.actor = Actor(host.node, host.identity, facts)
        self.alive = True
        self.hung = False
        self.leaving = False
        self.stream: Stream | None = None
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
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
            self.actor.restored(run, now)
            self.actor.started(run.token, known.started_at, now)
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
        if self.host.net.is_blocked(self.host.name) or not self.host.door.reachable():
            self._later(self.host.world.between(*BACKOFF_MS), self._connect)
            return
        self.stream = self.host.net.open(self.host.name, self, self.host.door)
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
        now = self._now()
        self._heard_ms = now
        if isinstance(frame, Welcome):
            self.host.world.tell(self.host.name, f"welcomed in session {frame.session}, generation {frame.generation}")
            self._do(self.actor.welcomed(frame, now))
            self._beat_ms = now + self.actor.lease_ms // BEATS_PER_LEASE
        else:
            assert isinstance(frame, Answer)
            self._unanswered = False
            self._do(self.actor.answered(frame, now))
        self._plan_next()

    def _closed(self, stream: Stream) -> None:
        if stream is self.stream:
            self.host.world.tell(self.host.name, f"sees {stream} end")
            self._part()

    def _part(self) -> None:
        self.stream = None
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
        elif isinstance(event, StepBegan):
            self.actor.stepped(int(event.id), event.step, now)
        elif isinstance(event, Ended):
            self._ended(event)
        elif isinstance(event, Refused) and event.id is not None and event.do in ("start", "stop"):
            self.actor.ended(int(event.id), "stopped", None, None, 0, event.error, now, now)
        self._plan_next()

    def _ended(self, event: Ended) -> None:
        self.actor.ended(
            int(event.id), event.cause, event.code, event.signal, event.step, event.error, event.at, self._now()
        )

    def _do(self, actions: list[Action]) -> None:
        keeper, after = self.host.keeper, self.host.world.after
        for action in actions:
            if isinstance(action, Start):
                after(PIPE_MS, self._order, keeper.start, action.run)
            elif isinstance(action, Halt):
                after(PIPE_MS, self._order, keeper.stop, action.token, action.grace_ms, action.cause)
            elif isinstance(action, Forget):
                after(PIPE_MS, self._order, keeper.forget, action.token)
            else:
                assert isinstance(action, Lease)
                if action.until_ms - self._lease_ms >= self.actor.lease_ms // 16 or action.until_ms < self._lease_ms:
                    self._lease_ms = action.until_ms
                    after(PIPE_MS, self._order, keeper.lease, action.until_ms)

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


class Host:
    """A machine. Its identity stays over reboots; its clock begins anew, and so does its keeper."""

    def __init__(
        self,
        world: World,
        net: Net,
        door: Door,
        witness: Witness,
        name: str,
        facts: Facts,
        drift_ppm: int,
        node: str = "",
    ) -> None:
        self.world = world
        self.net = net
        self.door = door
        self.name = name
        self.node = node or name  # what it calls itself; two machines may use one name
        self.identity = name
        self.facts = facts
        self.up = False
        self._drift_ppm = drift_ppm
        self._witness = witness
        self.clock = Clock(world, world.between(1, UPTIME_MS_MAX), drift_ppm)
        self.keeper = Keeper(world, name, self.clock, witness)
        self.agent: Agent | None = None

    def boot(self) -> None:
        """Power on: a keeper that knows nothing, and an agent."""
        if self.up:
            return
        self.world.tell(self.name, "boots")
        self.up = True
        self._witness.booted(self.name)
        if self.world.now:
            self.clock = Clock(self.world, BOOT_MS - self.world.now, self._drift_ppm)
        self.keeper = Keeper(self.world, self.name, self.clock, self._witness)
        self._start_agent(self.keeper)

    def crash(self) -> None:
        """Power off: everything here is gone at once, and nobody is told."""
        if not self.up:
            return
        self.world.tell(self.name, "loses power")
        self._go_down(quietly=True)

    def kill_agent(self) -> None:
        """The agent dies; the keeper and the runs do not notice, but for starting another one."""
        if self.agent is not None and self.agent.alive:
            self.world.tell(self.name, "agent killed")
            self.agent.die()
            self.world.after(self.world.between(*RESTART_MS), self._start_agent, self.keeper)

    def hang_agent(self, for_ms: int) -> None:
        """The agent stops for a while; the keeper replaces one that is silent for too long."""
        agent = self.agent
        if agent is None or not agent.alive or agent.hung:
            return
        self.world.tell(self.name, f"agent hangs for {for_ms} ms")
        agent.hang()
        if for_ms > HANG_MS_MAX:
            self.world.after(HANG_MS_MAX, self._replace_hung, agent)
        else:
            self.world.after(for_ms, agent.wake)

    def leave(self) -> None:
        """An orderly shutdown."""
        if self.agent is not None and self.agent.alive and not self.agent.hung:
            self.world.tell(self.name, "is shut down in order")
            self.keeper.stop_all(GRACE_MS)
            self._wait_for_idle(self.agent)

    def _wait_for_idle(self, agent: Agent) -> None:
        """Runs first, while the agent can tell about them; then the agent."""
        if agent is self.agent and agent.alive:
            if self.keeper.is_idle():
                agent.leave()
                self.world.after(FAREWELL_MS, self.leave_now, agent)
            else:
                self.world.after(20, self._wait_for_idle, agent)

    def leave_now(self, agent: Agent) -> None:
        """The last word was said: off."""
        if self.up and agent is self.agent and agent.alive:
            self._go_down(quietly=False)

    def _go_down(self, *, quietly: bool) -> None:
        self.up = False
        if self.agent is not None:
            self.agent.die(quietly=quietly)
        self.agent = None
        self.keeper.die()

    def _replace_hung(self, agent: Agent) -> None:
        if agent is self.agent and agent.hung:
            agent.hung = False
            self.kill_agent()

    def _start_agent(self, keeper: Keeper) -> None:
        if keeper is self.keeper and keeper.alive and self.up:
            self.agent = Agent(self, self.facts)
            self.agent.begin()
