"""The agent, pure: orders and what happened to runs go in; what to start, stop and report comes out.

No clock, no I/O: the service feeds it and carries out what it says; the fault simulator does the same on one heap.
All times are milliseconds of this host's own monotonic clock.
"""

from collections.abc import Iterable

import msgspec

from roost.agent.health.state import HealthState
from roost.agent.power import MachinePower
from roost.model.protocol import Answer, Beat, Drop, Hello, Order, PowerOrder, Report, Run, Stop, Usage, Welcome
from roost.model.records.files import InputFailure, Outputs
from roost.model.records.node import Facts
from roost.model.records.result import Result
from roost.model.records.usage import RunUsage
from roost.model.spec.service import Check
from roost.model.states import AttemptState, EndCause
from roost.ports.driver import Ended, PowerChanged, StopReason

RUNNING_DUE_MS = 50  # a start is reported this late at most: what ends sooner is one report
STARTING_DUE_MS = 200
RESULTS_UNACKNOWLEDGED_MAX = 256 << 10  # bytes: a server with 1,000 agents gets 256 MB of results at once
HELD_BACK = 1 << 62  # when a report is due that waits for the acknowledgement of others


class Start(msgspec.Struct, frozen=True):
    run: Run


class Halt(msgspec.Struct, frozen=True):
    token: int
    grace_ms: int
    reason: StopReason
    detail: str = ""


class Forget(msgspec.Struct, frozen=True):
    token: int


class Lease(msgspec.Struct, frozen=True):
    until_ms: int


Action = Start | Halt | Forget | Lease | PowerOrder


class Attempt(msgspec.Struct):
    """One attempt on this node: what was ordered, its state, and whether the server knows."""

    run: Run
    started_ms: int
    state: AttemptState = AttemptState.STARTING
    ended_ms: int = 0
    cause: EndCause = EndCause.NONE
    code: int | None = None
    signal: int | None = None
    step: int = 0
    error: str = ""
    log_size: int = 0
    stderr_size: int | None = None
    result: Result | None = None
    inputs_failed: InputFailure | None = None
    image: str = ""  # the digest of what its container is made of
    usage: RunUsage | None = None
    pulled_ms: int = 0  # for how long that was fetched
    outputs: Outputs | None = None
    power: MachinePower = msgspec.field(default_factory=MachinePower)
    health: HealthState | None = None  # without a check, an attempt that runs is ready
    stopping: bool = False
    dropped: bool = False
    has_exited: bool = False  # and its outputs are being collected
    is_held: bool = False  # the driver does not have it yet, and a later agent would not know it: it is not reported
    sent: int = 0  # the sequence of the beat that reported it; 0: never, or not since it changed

    def report(self, now: int) -> Report:
        return Report(
            token=self.run.token,
            state=self.state,
            started_ago_ms=max(0, now - self.started_ms),
            ended_ago_ms=max(int(self.has_exited), now - self.ended_ms) if self.ended_ms else 0,
            cause=self.cause,
            code=self.code,
            signal=self.signal,
            step=self.step,
            error=self.error,
            ready=self._is_ready(),
            log_size=self.log_size, stderr_size=self.stderr_size, usage=self.usage,
            result=self.result,
            inputs_failed=self.inputs_failed, image=self.image, outputs=self.outputs, pulled_ms=self.pulled_ms,
            power=self.power.state if self.state != "ended" else "",
            power_serial=self.power.serial, power_problem=self.power.problem,
        )  # fmt: skip

    def _is_ready(self) -> bool:
        if self.stopping or self.has_exited:
            return False
        return self.health is None or (self.health.ready and self.state == "running")

    @property
    def result_size(self) -> int:
        return len(self.result.data) if self.result is not None else 0


class Actor:
    """An agent's mind. Methods take what happened and return what to do, in order."""

    def __init__(self, node: str, identity: str, facts: Facts) -> None:
        self.node = node
        self.identity = identity
        self.facts = facts
        self.attempts: dict[int, Attempt] = {}
        self.session = 0  # 0: not connected
        self.generation = 0
        self.sequence = 0
        self.acknowledged = 0
        self.lease_ms = 0
        self.lease_until_ms = 0
        self.lacking = False
        self._news: dict[int, int] = {}  # attempts that changed, and when a report is due
        self._due_ms: int | None = None  # the first of those times
        self._results_sent: dict[int, int] = {}  # attempts whose results are on their way, and their sizes

    # the link

    def located(self, address: str) -> None:
        """Where others reach this machine, as it was found out; nothing: it is not known better than before."""
        if address and address != self.facts.address:
            self.facts = msgspec.structs.replace(self.facts, address=address)

    def hello(self, now: int) -> Hello:
        self.session = 0
        known = [attempt for _, attempt in sorted(self.attempts.items()) if not attempt.is_held]
        runs = tuple((attempt.run, attempt.report(now)) for attempt in known)
        for attempt in self.attempts.values():
            attempt.sent = 0
        self._news, self._due_ms, self._results_sent = {}, None, {}
        return Hello(self.node, self.identity, self.facts, now, runs)

    def welcomed(self, welcome: Welcome, now: int) -> list[Action]:
        """The server took us in: a session, a lease, and the whole assignment. Received twice, it counts once."""
        if self.session:
            return []
        self.session = welcome.session
        self.sequence = self.acknowledged = 0
        self.lease_ms = welcome.lease_ms
        self.lease_until_ms = 0  # the new session's lease counts, also when it is shorter than the old one's
        actions = self._renew(welcome.echo_ms)
        return actions + self._replace(welcome.orders, welcome.generation, now)

    def answered(self, answer: Answer, now: int) -> list[Action]:
        """The server spoke. Words for an older session are not for us."""
        if answer.session != self.session or not self.session:
            return []
        self.lease_ms = answer.lease_ms or self.lease_ms
        actions = self._renew(answer.echo_ms)
        if answer.acknowledged > self.acknowledged:
            self.acknowledged = answer.acknowledged
            actions += self._acknowledge(now)
        if answer.generation > self.generation:
            if answer.whole:
                actions += self._replace(answer.orders, answer.generation, now)
            elif answer.base == self.generation:
                self.generation = answer.generation
                actions += [action for order in answer.orders for action in self._obey(order, now)]
            else:
                self.lacking = True
        return actions

    def parted(self) -> None:
        """The stream broke. Work goes on; the lease decides for how long."""
        self.session = 0

    def next_due(self) -> int | None:
        return self._due_ms if self.session else None

    def beat(
        self, now: int, usage: Usage | None = None, *, again: bool = False, leaving: bool = False, last: bool = False
    ) -> Beat:  # fmt: skip
        """All that is due; with `again` also what was sent but not yet acknowledged; with `last` nothing is held back.

        What is not due waits: a run that ends soon is then one report, and the server decides once.
        """
        self.sequence += 1
        reports = []
        room = HELD_BACK if last else RESULTS_UNACKNOWLEDGED_MAX - sum(self._results_sent.values())
        update, self._news = dict.fromkeys(self._news, now) if last else self._news, {}
        for token in sorted(self.attempts if again else update):
            attempt = self.attempts.get(token)
            if attempt is None:
                continue
            if update.get(token, now) > now:
                self._news[token] = update[token]
            elif token in update and attempt.result_size > room and self._results_sent:
                self._news[token] = HELD_BACK
            elif token in update or attempt.sent > self.acknowledged:
                reports.append(attempt.report(now))
                attempt.sent = self.sequence
                if attempt.result_size and token not in self._results_sent:
                    self._results_sent[token] = attempt.result_size
                    room -= attempt.result_size
        self._due_ms = min((due for due in self._news.values() if due != HELD_BACK), default=None)
        beat = Beat(self.session, self.sequence, now, self.generation, tuple(reports), usage, self.lacking, leaving)
        self.lacking = False
        return beat

    # the runs

    def restored(self, run: Run, now: int, *, stopping: bool = False, image: str = "") -> None:
        """A run that an earlier life of this agent had started and the keeper kept."""
        attempt = self.attempts[run.token] = Attempt(run, now)
        attempt.stopping, attempt.image = stopping, image
        self._changed(attempt, now + STARTING_DUE_MS)

    def held(self, token: int) -> None:
        """It waits for files. A server that hears nothing of it orders it again, should this agent end."""
        self.attempts[token].is_held = True
        self._news.pop(token, None)

    def identified(self, token: int, digest: str, pulled_ms: int) -> None:
        """The image of its container is on the node; it is reported with whatever is reported next."""
        if token in self.attempts:
            self.attempts[token].image, self.attempts[token].pulled_ms = digest, pulled_ms

    def released(self, token: int, now: int) -> None:
        """The driver gets it."""
        self.attempts[token].is_held = False
        self._changed(self.attempts[token], now + STARTING_DUE_MS)

    def watched(self, token: int, check: Check) -> None:
        """This attempt has a health check: it is not ready until that went well. Called before its first report."""
        attempt = self.attempts.get(token)
        if attempt is not None:
            attempt.health = HealthState(check)

    def probed(self, token: int, well: bool, message: str, now: int) -> list[Action]:
        """A health check was carried out; `message` says what was wrong. Only changes are reported, not each check."""
        attempt = self._checked(token)
        if attempt is None or attempt.health is None:
            return []
        health = attempt.health
        before, text = health.ready, attempt.error
        ends = health.probed(well, now - attempt.started_ms)
        attempt.error = "" if health.ready else text if well else message
        if health.ready != before:
            self._changed(attempt, now)
        elif attempt.error != text and token not in self._news:
            self._changed(attempt, health.message_due_ms(now))
        return self._stop(token, attempt.run.grace_ms, StopReason.UNHEALTHY, message, now) if ends else []

    def next_look_ms(self, token: int, now: int) -> int | None:
        """The time until the next health check; None: there is none."""
        attempt = self._checked(token)
        if attempt is None or attempt.health is None:
            return None
        return attempt.health.pause_ms(token, now - attempt.started_ms)

    def is_running(self, token: int) -> bool:
        attempt = self.attempts.get(token)
        return attempt is not None and attempt.state == "running" and not attempt.has_exited

    def _checked(self, token: int) -> Attempt | None:
        attempt = self.attempts.get(token)
        return attempt if attempt is not None and self.is_running(token) and not attempt.stopping else None

    def started(self, token: int, at_ms: int, now: int) -> None:
        attempt = self.attempts.get(token)
        if attempt is not None and attempt.state == "starting":
            attempt.state, attempt.started_ms = AttemptState.RUNNING, at_ms
            self._changed(attempt, now + RUNNING_DUE_MS)

    def stepped(self, token: int, step: int, now: int) -> None:
        attempt = self.attempts.get(token)
        if attempt is not None and attempt.state == "running":
            attempt.step = step
            self._changed(attempt, now + RUNNING_DUE_MS)

    def powered(self, event: PowerChanged, now: int) -> None:
        attempt = self.attempts.get(int(event.id))
        if attempt is not None and attempt.state != "ended":
            power = attempt.power
            power.state, power.serial, power.problem = event.power, max(power.serial, event.serial), event.problem
            self._changed(attempt, now)

    def exited(self, token: int, at_ms: int, now: int) -> None:
        """Its process has ended. Its end is reported with its outputs, once they are stored."""
        attempt = self.attempts[token]
        attempt.has_exited, attempt.ended_ms = True, at_ms
        self._changed(attempt, now + RUNNING_DUE_MS)

    def ended(self, event: Ended, now: int) -> None:
        attempt = self.attempts.get(int(event.id))
        if attempt is None or attempt.state == "ended":
            return
        if attempt.state == "starting":
            self._close_ranks(attempt.run)
        attempt.state, attempt.ended_ms, attempt.cause = AttemptState.ENDED, event.at, EndCause(event.cause)
        attempt.code, attempt.signal, attempt.step, attempt.error = event.code, event.signal, event.step, event.error
        if event.cause == "stopped" and event.why is StopReason.UNHEALTHY:
            attempt.cause, attempt.error = EndCause.UNHEALTHY, event.detail
        attempt.log_size, attempt.stderr_size, attempt.result = event.log_size, event.stderr_size, event.result
        attempt.inputs_failed, attempt.outputs, attempt.is_held = event.inputs_failed, event.outputs, False
        attempt.usage = event.usage
        self._changed(attempt, now)

    def _close_ranks(self, gone: Run) -> None:
        """It never began: the next in its chain waits for the one before it, and the server gets a report."""
        for attempt in self.attempts.values():
            if attempt.run.after == gone.token:
                attempt.run = msgspec.structs.replace(attempt.run, after=gone.after)

    def _renew(self, echo_ms: int) -> list[Action]:
        """A lease counts from our own sending. An answer that comes late, after a newer one, takes nothing back."""
        until_ms = echo_ms + self.lease_ms
        if not echo_ms or until_ms <= self.lease_until_ms:
            return []
        self.lease_until_ms = until_ms
        return [Lease(until_ms)]

    def _replace(self, orders: Iterable[Order], generation: int, now: int) -> list[Action]:
        """The whole assignment: what is not in it is dropped."""
        self.generation = generation
        self.lacking = False
        orders = tuple(orders)
        wanted = {order.token for order in orders if isinstance(order, Run)}
        gone = [token for token in sorted(self.attempts, reverse=True) if token not in wanted]  # none of them moves up
        actions = [action for token in gone for action in self._drop(token, now)]
        return actions + [action for order in orders for action in self._obey(order, now)]

    def _obey(self, order: Order, now: int) -> list[Action]:
        if isinstance(order, Run):
            if order.token in self.attempts:
                return []
            attempt = self.attempts[order.token] = Attempt(order.bare(), now)
            self._changed(attempt, now + STARTING_DUE_MS)
            return [Start(order)]
        if isinstance(order, Stop):
            return self._stop(order.token, order.grace_ms, StopReason.ORDERED, order.cause, now)
        if isinstance(order, PowerOrder):
            ordered = self.attempts.get(order.token)
            return [order] if ordered is not None and ordered.power.ordered(order) else []
        assert isinstance(order, Drop)
        return self._drop(order.token, now)

    def _stop(self, token: int, grace_ms: int, reason: StopReason, detail: str, now: int) -> list[Action]:
        attempt = self.attempts.get(token)
        if attempt is None or attempt.state == "ended" or attempt.stopping:
            return []
        if attempt.health is not None and attempt.health.ready:  # of others the server knows it without a report
            self._changed(attempt, now)
        attempt.stopping = True
        return [Halt(token, grace_ms, reason, detail)]

    def _drop(self, token: int, now: int) -> list[Action]:
        attempt = self.attempts.get(token)
        if attempt is None:
            return []
        if attempt.state == "ended" and token not in self._news:
            del self.attempts[token]
            return [Forget(token)]
        attempt.dropped = True  # its end has to be reported first: until then it uses its allocation
        return self._stop(token, attempt.run.grace_ms, StopReason.DROPPED, "", now)

    def _acknowledge(self, now: int) -> list[Action]:
        if self._results_sent:
            self._send_more_results(now)
        done = [
            token
            for token, attempt in sorted(self.attempts.items())
            if attempt.dropped and attempt.state == "ended" and 0 < attempt.sent <= self.acknowledged
        ]
        for token in done:
            del self.attempts[token]
        return [Forget(token) for token in done]

    def _send_more_results(self, now: int) -> None:
        """What has arrived makes room for reports that were held back."""
        left = [token for token in self._results_sent if token in self.attempts]
        left = [token for token in left if not 0 < self.attempts[token].sent <= self.acknowledged]
        self._results_sent = {token: self._results_sent[token] for token in left}
        for token, due in self._news.items():
            if due == HELD_BACK:
                self._news[token] = self._due_ms = now

    def _changed(self, attempt: Attempt, due_ms: int) -> None:
        token = attempt.run.token
        due_ms = self._news[token] = min(due_ms, self._news.get(token, due_ms))
        self._due_ms = due_ms if self._due_ms is None else min(self._due_ms, due_ms)
        attempt.sent = 0
