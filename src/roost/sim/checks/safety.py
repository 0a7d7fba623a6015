"""Safety, checked from outside: against the processes that run, the records on disk, and the answers to clients."""

from collections.abc import Callable, Sequence

import msgspec

from roost.agent.actor import Actor
from roost.core.explain.why import why
from roost.core.invariants import check, differences
from roost.core.replica import follow, load, mirror, take_over
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.model.protocol import Run
from roost.model.records.instance import Instance
from roost.model.records.result import ResultProblem
from roost.model.records.workload import Workload
from roost.model.states import ABSENT, ALLOCATED, FINISHED, InstanceState, WorkloadKind
from roost.ports.store import Change, Snapshot
from roost.sim.checks.containers import check_containers
from roost.sim.checks.files import FileCheckers
from roost.sim.checks.logs import LogCheckers
from roost.sim.checks.machines import MachineCheckers
from roost.sim.checks.oracle import Oracle
from roost.sim.checks.pipelines import PipelineCheckers
from roost.sim.checks.queue import check_placements
from roost.sim.checks.records import Records
from roost.sim.checks.requests import RequestCheckers
from roost.sim.checks.services import ServiceCheckers
from roost.sim.checks.usage import UsageCheckers
from roost.sim.world.store import HARMLESS
from roost.sim.world.world import World, Wrong

LOAD_EVERY = 25  # commits: loading costs as much as ten steps
ASK_WHY_EVERY = 9  # steps
#: Attempts of one instance in any second. A job is retried at once, here at most ten times; a round trip takes 14 ms.
ATTEMPTS_PER_S_MAX = 20

RUNS = ("placed", "starting", "running")
WAITING_CODES = ("no_nodes", "insufficient_resources", "unsatisfiable", "quota_exceeded", "backoff", "maintenance",
                 "awaiting_agents", "after", "needs_approval", "schedule", "home")  # fmt: skip


class Known(msgspec.Struct):
    serial: int
    state: str
    token: int
    attempt: int
    code: int | None


class Checkers:
    def __init__(self, world: World, truth: Oracle, snapshot: Callable[[], Snapshot]) -> None:
        self._world = world
        self._truth = truth
        self._snapshot = snapshot  # a function that reads the disk
        self.forgetful = False  # the disk dies with the server: an answer need not hold after a crash
        self._state = State()  # as it is in the server's memory
        self._mirror = mirror(snapshot())  # as a standby has it
        self.steps = 0
        self.commits = 0
        self.records = Records()
        self.disk: dict[str, Known] = {}  # instances on disk
        self.reported: dict[str, Known] = {}  # end states that were published
        self.swept: dict[str, bool] = {}  # workloads that were removed at least once
        self.accepted: dict[str, bool] = {}  # workloads whose submission was answered with yes
        self.cancelled: dict[str, int] = {}  # workload or instance -> true time at which the cancel was answered
        self.retried: dict[str, int] = {}  # workload -> how many requests to run it, or another of its name, again
        self.tokens: dict[int, str] = {}  # every attempt that was ever on disk -> its node
        self._writers: dict[int, str] = {}  # epoch -> the server that committed in it
        self.requests = RequestCheckers()
        self.logs = LogCheckers()
        self.files = FileCheckers(truth, self.records)
        self.pipelines = PipelineCheckers(truth, self.records)
        self.usage = UsageCheckers(self.records)
        self.machines = MachineCheckers(truth.machines, self.records)
        self.living = ServiceCheckers(truth, self.records, self.retried)
        self._token_max = 0  # before the commit that is being checked
        self._attempts_ms: dict[str, list[int]] = {}  # instance -> when it got its last attempts

    # the server

    def paused(self) -> None:
        """In the middle of a step, its state says nothing."""
        self._state = State()

    def stepped(self, state: State, done: Step, *, is_fenced: bool = False) -> None:
        """A leader that is fenced and does not know it may give sessions the numbers that the next leader gave."""
        self.steps += 1
        self._state = State() if is_fenced else state
        for trouble in check(state):
            raise Wrong(f"after a step: {trouble}")
        if state.dirty:
            raise Wrong(f"a step did not save {list(state.dirty)}")
        if self.steps % ASK_WHY_EVERY == 0 and not (done.wake_at_ms is not None and done.wake_at_ms <= state.now_ms):
            self._pending_instances_know_why(state)

    def committed(self, changes: Sequence[Change], server: str = "", epoch: int = 0) -> None:
        """After every write to the disk, also if its writer never gets the answer."""
        self.commits += 1
        if self._writers.setdefault(epoch, server) != server or epoch < max(self._writers):
            raise Wrong(f"{server} has committed with epoch {epoch}; leaders were {self._writers}")
        self.records.committed(changes)
        for key, before, now in self.records.changed("workload"):
            if before is not None and (now is None or now.serial != before.serial):
                self.logs.removed(f"{key}/{before.serial}")
            if now is None:
                self._workload_swept(key)
            elif before is not None and now.serial < before.serial and now.adopted <= before.adopted:
                raise Wrong(f"{key} had serial {before.serial} and has {now.serial} now")
        for key, _, now in self.records.changed("instance"):
            self._instance_written(key, now)
        check_placements(self.records)
        self.living.committed()
        self.files.committed()
        self.pipelines.committed()
        self.usage.committed()
        check_containers(self.records)
        self.machines.committed()
        follow(self._mirror, self._mirror.revision + 1, changes)
        self._token_max = max(self.tokens, default=0)

    def loaded(self, state: State, *, is_fenced: bool) -> None:
        """After every load: nothing is missing, unless another server leads by now, and every answer still holds."""
        self._state = state
        if state.revision != self._mirror.revision and not is_fenced:
            raise Wrong(f"a server leads from revision {state.revision}, and {self._mirror.revision} is on the disk")
        for trouble in check(state):
            raise Wrong(f"after a load: {trouble}")
        self.reports_are_true()

    def forgotten(self) -> None:
        """The disk is empty again. What runs, and which tokens were used, stays true."""
        for known in (self.disk, self.reported, self.accepted, self.cancelled):
            known.clear()
        self._writers.clear()
        self._mirror = mirror(Snapshot(0, []))
        self.records.forgotten()
        self.machines.forgotten()

    def store_refused(self, message: str, damage: str) -> None:
        if damage in ("", *HARMLESS):
            raise Wrong(f"a store that has every acknowledged commit was refused: {message}")

    def loss_accepted(self, snapshot: Snapshot) -> None:
        """An operator goes on without what a disk has lost: those answers need not hold, and tokens still only grow."""
        for key in list(self.records.now["workload"]):
            self.replaces(key)
        self.forgotten()
        self.forgetful = self.files.forgetful = self.machines.forgetful = True
        self.logs.loss_accepted()
        self.records.committed(snapshot.records)
        for key, _, now in self.records.written("instance"):
            self.disk[key] = self._known(now)
            if now.state in RUNS and now.token not in self._truth.live:
                self._truth.began_ever.pop(now.token, None)  # its end is lost, so it is ordered again
        self._mirror = mirror(snapshot)

    def acted(self, state: State, done: Step) -> None:
        """When a step is durable: what the outside world learns now must stay true."""
        if self.commits % LOAD_EVERY == 0 and done.changes:
            self._same_as_disk(state)
        for node, line in done.node_transitions:
            if line.state == line.before:
                continue
            self._world.tell("server", f"{node} is {line.state}: {line.reason.code}")
            if line.state in ABSENT:
                machine = state.nodes[node].identity.partition("/")[0] if node in state.nodes else node
                for host, run, _ in self._truth.live.values():
                    if host == machine and run.leased and run.token <= state.serial:  # not of the next leader
                        raise Wrong(f"{node} was given up while {run.token} of {run.workload} runs there leased")
        self._orders_are_known(done)
        for change in done.changes:
            if change.kind == "instance" and change.value is not None:
                instance = state.instances[change.key]
                if instance.state not in FINISHED:
                    self.reported.pop(change.key, None)
                elif self.records.workload(instance.workload) is not None:  # the next leader may have removed it since
                    self.reported[change.key] = self._known(instance)

    # the agents

    def followed(self, actor: Actor, session: int, generation: int) -> None:
        """After every message to an agent: generations only grow, and what it believes to be known is on disk."""
        if actor.session == session and actor.generation < generation:
            raise Wrong(f"{actor.node} went back from orders {generation} to {actor.generation}")
        for token, attempt in actor.attempts.items():
            if attempt.state == "ended" and 0 < attempt.sent <= actor.acknowledged:
                known = self.disk.get(f"{attempt.run.workload}.{attempt.run.index}")
                if known is not None and known.token == token and known.state in RUNS:
                    raise Wrong(f"{actor.node} got the end of {token} acknowledged, the disk says {known}")

    def caught_up(self, actor: Actor) -> None:
        """With every heartbeat: an agent that has followed all orders has the attempts of its node."""
        state, node = self._state, actor.node
        if node not in state.nodes or state.nodes[node].session != actor.session:
            return
        if state.liveness[node].generation == actor.generation:
            for token in state.allocated[node]:
                if token not in actor.attempts:
                    raise Wrong(f"{actor.node} has followed all orders up to {actor.generation} and lacks {token}")

    # the clients

    def answered_submit(self, key: str) -> None:
        if self.forgetful or key in self.swept:
            return
        self.accepted[key] = True
        if self.records.workload(key) is None:
            raise Wrong(f"{key} was accepted and is not on disk")

    def answered_cancel(self, key: str) -> None:
        retried = self.retried.get(key) or self.retried.get(key.rpartition(".")[0])
        if not retried and not self.forgetful:  # otherwise it is unknown which of the two came last
            self.cancelled[key] = self._world.now

    def asks_retry(self, key: str) -> None:
        """A client is about to ask for another run: from here on, end states may change again."""
        self.retried[key] = self.retried.get(key, 0) + 1
        for known in (self.reported, self.cancelled):
            for name in [name for name in known if name == key or name.rpartition(".")[0] == key]:
                del known[name]

    def replaces(self, key: str) -> None:
        """A client is about to reuse the name of a finished workload: what was known of the old one is obsolete."""
        self.asks_retry(key)
        self.accepted.pop(key, None)

    # what they check

    def reports_are_true(self) -> None:
        for key, report in self.reported.items():
            known = self.disk.get(key)
            if known != report and not self.retried.get(key.rpartition(".")[0]):
                raise Wrong(f"{key} was reported to be {report}, the disk says {known}")
        for key in self.accepted:
            if self.records.workload(key) is None:
                raise Wrong(f"{key} was accepted and is no longer on disk")

    def _workload_swept(self, key: str) -> None:
        for live in self._truth.live.values():
            if live.run.workload == key and live.run.leased and not self.forgetful:
                raise Wrong(f"{key} was forgotten while {live.run.token} runs on {live.host}")
        self.swept[key] = True
        self.accepted.pop(key, None)
        for name in [name for name in self.reported if name.rpartition(".")[0] == key]:
            del self.reported[name]

    def _instance_written(self, key: str, instance: Instance | None) -> None:
        if instance is None:
            gone = self.disk.pop(key, None)
            if gone is not None and not self.forgetful:
                self._gone_for_good(key, gone)
            name, _, index = key.rpartition(".")
            left = self.records.workload(name)
            if left is not None and int(index) >= left.count:
                self.reported.pop(key, None)  # a surge instance that is no longer needed
            return
        new, old = self._known(instance), self.disk.get(key)
        workload = self.records.now["workload"][instance.workload]
        if old is not None and new.attempt < old.attempt and workload.policy.kind == WorkloadKind.SERVICE:
            self._gone_for_good(key, old)
            old = None  # it was a surge instance before, and is one again
        if old is not None and old.serial == new.serial:
            if new.token < old.token or new.attempt < old.attempt:
                raise Wrong(f"{key} went back from {old} to {new}")
            later = self.forgetful and new.token > old.token  # reported later by another agent
            if old.state in FINISHED and new != old and not later and not self.retried.get(instance.workload):
                raise Wrong(f"{key} had ended as {old} and is {new} now")
        if new.token and new.token not in self.tokens:
            if new.token <= self._token_max:
                raise Wrong(f"{key} got token {new.token}, {self._token_max} was given out before")
            self.tokens[new.token] = instance.node
            self._not_too_often(key)
            self._tried_often_enough(instance, workload)
        if new.state != (old.state if old else ""):
            self._world.tell("disk", f"{key} {new.state} token {new.token}: {instance.reason}")
        self.disk[key] = new
        live = self._truth.live.get(new.token)
        if new.state not in ALLOCATED and live is not None and live.run.leased:
            raise Wrong(f"{key} is {new.state} ({instance.reason}) while {new.token} runs on {live.host}")
        if new.state in FINISHED and new.token:
            self._ending_is_true(instance)
        self._result_is_true(instance)

    def _gone_for_good(self, key: str, old: Known) -> None:
        live = self._truth.live.get(old.token)
        if live is not None and live.run.leased:
            raise Wrong(f"{key} was forgotten while {old.token} runs on {live.host}")

    def _ending_is_true(self, instance: Instance) -> None:
        ending = self._truth.endings.get(instance.token)
        cause, code = (ending.cause, ending.code) if ending is not None else ("", None)
        is_true = {
            InstanceState.SUCCEEDED: (cause, code) == ("exited", 0),
            InstanceState.TIMED_OUT: cause == "timed_out",
            InstanceState.FAILED: instance.exit_code is None or code == instance.exit_code,
        }
        if not is_true.get(instance.state, True):
            raise Wrong(f"{instance.key} is reported as {instance.state} {instance.exit_code}; really: {ending}")

    def _result_is_true(self, instance: Instance) -> None:
        """The result is that of the present attempt, and it is there as soon as that has ended."""
        has_ended = instance.log_size is not None
        written = self._truth.written(instance.token) if has_ended else None
        result = instance.result
        if result is not None and result.problem == ResultProblem.PROJECT_FULL and written is not None:
            return
        if result != written:
            raise Wrong(f"{instance.key} has the result {result}; attempt {instance.token} really wrote {written}")

    def _tried_often_enough(self, instance: Instance, workload: Workload) -> None:
        policy = workload.policy
        if policy.kind != WorkloadKind.JOB or self.retried.get(instance.workload):
            return
        tokens = self._truth.by_slot.get((instance.workload, workload.serial, instance.index), [])
        endings = [self._truth.endings[token] for token in tokens if token in self._truth.endings]
        failed = sum(cause == "timed_out" or (cause == "exited" and code != 0) for cause, code, _ in endings)
        # Each failure may have been reported, or have got lost with its node; both have their own limit.
        if failed > 2 * (policy.retries_max + 1):
            raise Wrong(f"{instance.key} failed {failed} times, {policy.retries_max} retries are allowed")

    def _not_too_often(self, key: str) -> None:
        """A bound on churn: two rules that undo each other restart an instance without end."""
        attempts_ms = [at_ms for at_ms in self._attempts_ms.get(key, ()) if at_ms > self._world.now - 1_000]
        self._attempts_ms[key] = [*attempts_ms, self._world.now]
        if len(attempts_ms) >= ATTEMPTS_PER_S_MAX:
            raise Wrong(f"{key} got {len(attempts_ms) + 1} attempts within a second")

    def _orders_are_known(self, done: Step) -> None:
        for orders in done.assignments:
            for order in orders.orders:
                if isinstance(order, Run) and self.tokens.get(order.token) != orders.node:
                    raise Wrong(f"{orders.node} is to run {order.token}, the disk says {self.tokens.get(order.token)}")
                if isinstance(order, Run):
                    self.files.ordered(order)
        for placed in done.placed:
            for key in (placed.instance.rpartition(".")[0], placed.instance):
                if self.cancelled.get(key, self._world.now) < self._world.now:
                    raise Wrong(f"{placed.instance} was placed after {key} had been cancelled")

    def _pending_instances_know_why(self, state: State) -> None:
        for workload in state.workloads.values():
            placed = state.placed_count(workload)
            known = ((index, state.instances.get(f"{workload.key}.{index}")) for index in range(placed))
            queued = (index for index, instance in known if instance and instance.state == InstanceState.QUEUED)
            is_pending = state.has_unstarted(workload) or (workload.pending_conditions and placed < workload.count)
            index = next(queued, placed if is_pending else None)
            if index is not None:
                reason = why(state, workload.key, index)
                if reason.code not in WAITING_CODES or not reason.text:
                    raise Wrong(f"{workload.key}.{index} is pending for an unknown reason: {reason}")

    def _same_as_disk(self, state: State) -> None:
        snapshot = self._snapshot()
        if snapshot.revision != state.revision:
            return  # another server has committed since
        loaded = load(snapshot, state.now_ms, state.settings)
        for trouble in differences(state, loaded):
            raise Wrong(f"the state is not what is on disk: {trouble}")
        standby, self._mirror = self._mirror, mirror(snapshot, state.settings)
        standby.settings = state.settings
        take_over(standby, state.now_ms)
        for trouble in [*check(standby), *differences(standby, loaded)]:
            raise Wrong(f"a standby that takes over would differ: {trouble}")

    def _known(self, instance: Instance) -> Known:
        workload = self.records.workload(instance.workload)
        if workload is None:
            raise Wrong(f"an instance of {instance.workload} is on disk without it")
        return Known(workload.serial, instance.state, instance.token, instance.attempt, instance.exit_code)
