"""The agent's service: driver, actor, link and spool put together. What is to be done is the actor's to say."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable, Sequence

from roost.agent.actor import Action, Actor, Forget, Halt, Lease, Start
from roost.agent.checks import Checks
from roost.agent.health_probe import end_leftovers
from roost.agent.identity import Identity
from roost.agent.keeper_proc import MARK
from roost.agent.launch import from_note, health, log_name, prepare, waits_for
from roost.agent.link import Link, now_ms
from roost.agent.say import say
from roost.agent.spool import Spool
from roost.model.errors import Invalid
from roost.model.frames import Run, Usage
from roost.model.limits import TEXT_LENGTH_MAX
from roost.model.node import Facts
from roost.ports.driver import Driver, Ended, Event, Known, Refused, Runs, Started, StepBegan

ATTEMPTS_MAX = 4_096  # half of what a keeper keeps: what has ended takes room until everybody knows
DOCUMENT_BYTES_MAX = 48 << 20  # of all attempts together: a hello holds them all, and a server takes 64 MiB
LEASE_STEPS = 16  # a lease is told to the driver when it grew by this part: bursts of answers cost one word
KEEPER_S_MAX = 5.0  # the keeper answers at once
LAST_EVENTS_S = 0.3  # what the keeper said before it asked us to end is here by then
FAREWELL_S = 1.7  # with the above: we are gone two seconds after we were asked
SHUTDOWN = "shutdown"  # why the keeper stops what runs when it is asked to end
CLOSING = "shutting down"  # ... and why it starts nothing more
SWEEP_S = 30.0  # between looks at work directories that runs have left full


class Service:
    """One agent. Feed it the driver's events through `told`; `run` ends when the agent is asked to."""

    def __init__(
        self, directory: str, name: str, identity: str, facts: Facts, server: str,
        usage: Callable[[], Usage | None],
    ) -> None:  # fmt: skip
        self._directory = directory
        self._mark = os.environ.get(MARK, "")  # what the keeper starts carries it, and so do we
        self.actor = Actor(name, identity, facts)
        self.link = Link(server, Identity(directory), self.actor, self._act, self._welcomed, usage)
        self.spool = Spool(f"{directory}/logs", self.link.ship, self._live_logs)
        self.checks = Checks(self._looked)
        self.driver: Driver | None = None
        self._logs: dict[int, str] = {}  # what the server calls the log of each attempt
        self._sizes: dict[int, int] = {}  # of the document and the variables of each attempt
        self._sizes_sum = 0
        self._lease_ms = 0  # what the driver was told
        self._restored = asyncio.Event()
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Take over what the driver has, then serve until asked to stop."""
        async with asyncio.timeout(KEEPER_S_MAX):
            await self._restored.wait()
        attempts = self.actor.attempts
        self.spool.begin(self._logs[token] for token in attempts if attempts[token].state == "ended")
        async with asyncio.TaskGroup() as group:
            works = (self.link.run(), self.spool.run(), self.checks.run(), self._sweep())
            tasks = [group.create_task(work) for work in works]
            await self._stop.wait()
            await self._farewell()
            for task in tasks:
                task.cancel()

    def stop(self) -> None:
        """End soon: whoever asks has stopped the work, or wants another agent to take it over."""
        self._stop.set()

    # what the driver tells

    def told(self, event: Event) -> None:
        """Something happened to a run."""
        now = now_ms()
        if isinstance(event, Started):
            self.actor.started(int(event.id), event.at, now)
            self._look_after(int(event.id), now)
            if event.limits:
                say(f"run {event.id}: {event.limits}")
        elif isinstance(event, Ended):
            self._ended(event, now)
        elif isinstance(event, StepBegan):
            self.actor.stepped(int(event.id), event.step, now)
        elif isinstance(event, Runs):
            self._restore(event, now)
        else:
            self._refused(event, now)
        self.link.nudge()

    def _ended(self, event: Ended, now: int) -> None:
        token = int(event.id)
        error = event.error or ("out of memory" if event.oom else "")
        self.actor.ended(
            token, event.cause, event.code, event.signal, event.step, _line(error), event.at, now, event.log_size,
            event.why,
        )  # fmt: skip
        self.checks.leave(token)
        name = self._logs.get(token)
        if name is not None:
            self.spool.ended(name, event.log_size)
        if event.why == SHUTDOWN:
            self.link.leave()
        self._changed.set()

    def _restore(self, event: Runs, now: int) -> None:
        self._lease_ms = event.lease
        for known in event.runs:
            run = from_note(known.note)
            if run is None or str(run.token) != known.id:
                say(f"run {known.id} is not of this agent: stopped")
                self._driver.stop(known.id, 0, "nobody knows what it is")
            elif run.token not in self.actor.attempts:
                self._restore_one(run, known, now)
        if self.actor.attempts:
            end_leftovers(self._mark)
            say(f"took over {len(self.actor.attempts)} runs")
        self._restored.set()

    def _restore_one(self, run: Run, known: Known, now: int) -> None:
        self._remember(run)
        self.actor.restored(waits_for(run, known), now, stopping=known.state == "stopping")
        try:
            self._watch(run)
        except Invalid as error:
            say(f"run {run.token} goes on, but its health is not looked at: {error}")
        if known.started_at:
            self.actor.started(run.token, known.started_at, now)
            self._look_after(run.token, now)
        if known.step:
            self.actor.stepped(run.token, known.step, now)
        if known.ended is not None:
            self._ended(known.ended, now)

    def _refused(self, event: Refused, now: int) -> None:
        """An order the driver did not follow. What a driver that is closing does not run, another node may."""
        say(f"the driver refuses to {event.do or 'understand'} {event.id or ''}: {event.error}")
        closing = event.do == "start" and CLOSING in event.error
        if closing:
            self.link.leave()
        if event.do in ("start", "stop") and event.id is not None and event.id.isdecimal():
            self._give_up(int(event.id), "stopped" if closing or event.do == "stop" else "error", event.error, now)

    def _give_up(self, token: int, cause: str, error: str, now: int) -> None:
        self.actor.ended(token, cause, None, None, 0, _line(error), now, now)
        self.checks.leave(token)
        self._changed.set()
        self.link.nudge()

    # what health checks tell

    def _watch(self, run: Run) -> None:
        target = health(run, self.actor.node, self._directory, self._mark)
        if target is not None:
            self.actor.watched(run.token, target.check)
            self.checks.watch(run.token, target)

    def _look_after(self, token: int, now: int) -> None:
        pause_ms = self.actor.next_look_ms(token, now)
        if pause_ms is not None:
            self.checks.begin(token, pause_ms)

    def _looked(self, token: int, words: str) -> int | None:
        """A health check was carried out; returns how long until the next one."""
        now = now_ms()
        self._act(self.actor.probed(token, not words, _line(words), now))
        self.link.nudge()
        return self.actor.next_look_ms(token, now)

    # what the actor says

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._start(action.run)
            elif isinstance(action, Lease):
                self._lease(action.until_ms)
            elif isinstance(action, Halt):
                self.checks.leave(action.token)
                self._driver.stop(str(action.token), action.grace_ms, action.cause)
            else:
                self._forget(action)

    def _start(self, run: Run) -> None:
        name = self._remember(run)
        handed = run.secrets
        run = self.actor.attempts[run.token].run  # whom it is to wait for may have been given up a moment ago
        if len(self._logs) > ATTEMPTS_MAX or self._sizes_sum > DOCUMENT_BYTES_MAX:
            self._give_up(run.token, "stopped", f"this node has {len(self._logs) - 1} attempts already", now_ms())
            return
        try:
            order = prepare(run, self.actor.node, self._directory, self.spool.path(name), handed)
            self._watch(run)
        except Invalid as error:
            self._give_up(run.token, "error", str(error), now_ms())
        else:
            self._driver.start(order)

    def _lease(self, until_ms: int) -> None:
        if until_ms - self._lease_ms >= self.actor.lease_ms // LEASE_STEPS or until_ms < self._lease_ms:
            self._lease_ms = until_ms
            self._driver.lease(until_ms)

    def _forget(self, action: Forget) -> None:
        self._driver.forget(str(action.token))
        self._sizes_sum -= self._sizes.pop(action.token)
        self.spool.release(self._logs.pop(action.token))

    def _remember(self, run: Run) -> str:
        size = len(run.document) + sum(len(name) + len(value) for name, value in run.env)
        self._sizes[run.token] = size
        self._sizes_sum += size
        name = self._logs[run.token] = log_name(run)
        return name

    def _welcomed(self) -> None:
        self.spool.reconnected()

    @property
    def _driver(self) -> Driver:
        assert self.driver is not None, "the service was given no driver"
        return self.driver

    def _live_logs(self) -> Iterable[str]:
        return [self._logs[token] for token, attempt in self.actor.attempts.items() if attempt.state != "ended"]

    # the end, and what is left

    async def _farewell(self) -> None:
        """Tell the rest. If something still runs, another agent takes it over, and this is no goodbye."""
        try:
            async with asyncio.timeout(LAST_EVENTS_S):
                while any(attempt.state != "ended" for attempt in self.actor.attempts.values()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self.link.goodbye()
                await self.spool.flushed()
        except TimeoutError:
            say("the server was not told everything before the end")

    async def _sweep(self) -> None:
        """Remove work directories that runs have left full; empty ones are the driver's."""
        work = f"{self._directory}/work"
        os.makedirs(work, mode=0o700, exist_ok=True)
        while True:
            left = [name for name in os.listdir(work) if name.isdecimal() and int(name) not in self._logs]
            await asyncio.to_thread(_remove, [f"{work}/{name}" for name in left])
            await asyncio.sleep(SWEEP_S)


def _remove(folders: list[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _line(text: str) -> str:
    """One line that the server takes."""
    return "".join(each if each.isprintable() else " " for each in text)[:TEXT_LENGTH_MAX]
