"""Hosts: a clock, a keeper that lives as long as the host, and agents that come and go, hang and wake."""

from collections.abc import Callable
from typing import Any, Protocol

from roost.agent.actor import Action, Actor, Forget, Halt, Lease, Start
from roost.model.frames import Answer, Welcome
from roost.model.node import Facts
from roost.sim.keeper import Ended, Keeper, Witness
from roost.sim.net import End, Net, Stream
from roost.sim.world import Clock, World

PIPE_MS = 1  # between agent and keeper, both ways; in order, and nothing is lost while both live
BEAT_MS = 1_000
WELCOME_MS = 3_000  # a hello that is not answered by then was in vain
SILENCE_MS = 4_000  # a server that has not spoken for so long is gone
BACKOFF_MS = (100, 1_500)
RESTART_MS = (200, 1_200)  # until the keeper has a new agent
HANG_MS_MAX = 10_000  # an agent silent for longer is killed by its keeper


class Door(End, Protocol):
    """Where agents knock."""

    def reachable(self) -> bool:
        """Whether anybody listens."""


class Agent:
    """One life of an agent process."""

    def __init__(self, host: "Host", facts: Facts) -> None:
        self.host = host
        self.actor = Actor(host.name, host.identity, facts)
        self.alive = True
        self.hung = False
        self.leaving = False
        self.stream: Stream | None = None
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._lease_sent = 0
        self._heard_ms = 0
        self._beat_ms = 0
        self._tick_ms: int | None = None

    def begin(self) -> None:
        """Take over from the keeper what an earlier agent had started, then look for the server."""
        now = self._now()
        for token, kept in sorted(self.host.keeper.runs.items()):
            self.actor.restored(kept.run, now)
            if kept.alive:
                self.actor.started(token, kept.started_ms, now)
            elif kept.ended is not None:
                self._ended(token, kept.ended)
        self.host.keeper.pipe = self
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
        weather = self.host.net.of(self.host.name)
        if weather.up_blocked or weather.down_blocked or not self.host.door.reachable():
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
            self._beat_ms = now + BEAT_MS
        else:
            assert isinstance(frame, Answer)
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
        if now - self._heard_ms >= (SILENCE_MS if self.actor.session else WELCOME_MS):
            self.host.world.tell(self.host.name, f"gives up {stream}")
            self.host.net.close(stream, up=True, quietly=self.host.world.happens(0.3))
            self._part()
            return
        if self.actor.session:
            due = self.actor.next_due()
            regular = now >= self._beat_ms
            if regular or self.actor.lacking or (due is not None and due <= now):
                self._beat(stream, now, again=regular)
        self._plan_next()

    def _beat(self, stream: Stream, now: int, *, again: bool) -> None:
        if again:
            self._beat_ms = now + BEAT_MS
        done = self.leaving and all(each.state == "ended" for each in self.actor.attempts.values())
        beat = self.actor.beat(now, again=again, leaving=done)
        if beat.reports or beat.lacking or beat.leaving:
            said = [f"{report.token} {report.state} {report.cause}".strip() for report in beat.reports]
            self.host.world.tell(self.host.name, f"beat {beat.sequence}: {said}{' lacking' * beat.lacking}")
        self.host.net.send(stream, beat, up=True)
        if done:
            self.host.world.tell(self.host.name, "says goodbye")
            self.host.world.after(self.host.world.between(5, 50), self.host.leave_now, self)

    def _plan_next(self) -> None:
        if self.stream is None:
            return
        if not self.actor.session:
            self._plan(self._heard_ms + WELCOME_MS)
            return
        due = self.actor.next_due()
        at_ms = min(self._beat_ms, self._heard_ms + SILENCE_MS)
        if due is not None:
            at_ms = min(at_ms, due)
        self._plan(self._now() if self.actor.lacking else at_ms)

    def _plan(self, at_ms: int) -> None:
        if self._tick_ms is None or at_ms < self._tick_ms:
            self._tick_ms = at_ms
            self.host.world.at(self.host.clock.true_ms(at_ms), self._awake, self._tick, at_ms)

    # the keeper

    def leave(self) -> None:
        """Stop everything, tell the server, say goodbye."""
        self.leaving = True
        self._do(self.actor.halt_all(500))
        self._plan_next()

    def happened(self, kind: str, token: int, *more: Any) -> None:
        """The keeper's word about a run."""
        self._later(PIPE_MS, self._happened, kind, token, more)

    def _happened(self, kind: str, token: int, more: tuple[Any, ...]) -> None:
        if kind == "started":
            self.actor.started(token, more[0], self._now())
        else:
            self._ended(token, more[0])
        self._plan_next()

    def _ended(self, token: int, ended: Ended) -> None:
        now = self._now()
        self.actor.ended(token, ended.cause, ended.code, ended.signal, 0, ended.error, ended.at_ms, now)

    def _do(self, actions: list[Action]) -> None:
        keeper, after = self.host.keeper, self.host.world.after
        for action in actions:
            if isinstance(action, Start):
                after(PIPE_MS, self._order, keeper.start, action.run)
            elif isinstance(action, Halt):
                after(PIPE_MS, self._order, keeper.stop, action.token, action.grace_ms)
            elif isinstance(action, Forget):
                after(PIPE_MS, self._order, keeper.forget, action.token)
            else:
                assert isinstance(action, Lease)
                after(PIPE_MS, self._order, keeper.lease, action.until_ms)

    def _order(self, order: Callable[..., None], *given: Any) -> None:
        if self.host.keeper.alive and (self.alive or self.host.world.happens(0.5)):
            order(*given)

    def _later(self, delay_ms: int, action: Callable[..., None], *given: Any) -> None:
        self.host.world.after(delay_ms, self._awake, action, *given)

    def _now(self) -> int:
        return self.host.clock.now_ms()


class Host:
    """A machine. Its identity stays over reboots, its clock does not stop, its keeper starts with it."""

    def __init__(self, world: World, net: Net, door: Door, witness: Witness, name: str, facts: Facts, clock: Clock):
        self.world = world
        self.net = net
        self.door = door
        self.name = name
        self.identity = f"id-{name}"
        self.facts = facts
        self.clock = clock
        self.up = False
        self._witness = witness
        self.keeper = Keeper(world, name, clock, witness)
        self.agent: Agent | None = None

    def boot(self) -> None:
        """Power on: a keeper that knows nothing, and an agent."""
        if self.up:
            return
        self.world.tell(self.name, "boots")
        self.up = True
        self._witness.booted(self.name)
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
            self.agent.leave()

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
