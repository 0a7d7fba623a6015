"""What must never happen, seen from outside: against what really runs, what is on disk, what clients were told."""

from collections.abc import Callable, Sequence

import msgspec

from roost.agent.actor import Actor
from roost.core.check import check, differences
from roost.core.effects import Step
from roost.core.explain import why
from roost.core.load import follow, load, mirror, take_over
from roost.core.state import State
from roost.model.frames import Run
from roost.model.instance import Instance
from roost.model.states import FINISHED, HOLDING
from roost.model.workload import Workload
from roost.ports.store import Change, Snapshot
from roost.sim.living_checkers import LivingCheckers
from roost.sim.settings import SettingsCheckers
from roost.sim.truth import Truth
from roost.sim.world import World, Wrong

LOAD_EVERY = 25  # commits: loading costs as much as ten steps
ASK_WHY_EVERY = 9  # steps

RUNS = ("placed", "starting", "running")
WAITING_CODES = ("no_nodes", "insufficient_resources", "unsatisfiable", "quota_exceeded", "backoff", "maintenance",
                 "after", "schedule")  # fmt: skip

_INSTANCE = msgspec.msgpack.Decoder(Instance)
_WORKLOAD = msgspec.msgpack.Decoder(Workload)


class Known(msgspec.Struct):
    """What the disk says of one instance."""

    serial: int
    state: str
    token: int
    attempt: int
    code: int | None


class Checkers:
    """Everybody tells them everything; they raise Wrong."""

    def __init__(self, world: World, truth: Truth, snapshot: Callable[[], Snapshot]) -> None:
        self._world = world
        self._truth = truth
        self._snapshot = snapshot  # a function that reads the disk
        self.forgetful = False  # the disk dies with the server: what was told need not be true after a crash
        self._state = State()  # as it is in the server's memory
        self._mirror = mirror(snapshot())  # as a standby has it
        self.steps = 0
        self.commits = 0
        self.serials: dict[str, int] = {}  # workloads on disk
        self.policies: dict[str, Workload] = {}
        self.disk: dict[str, Known] = {}  # instances on disk
        self.told: dict[str, Known] = {}  # endings that were told to whoever watches
        self.swept: dict[str, bool] = {}  # workloads that were forgotten, once at least
        self.accepted: dict[str, bool] = {}  # workloads whose submission was answered with yes
        self.cancelled: dict[str, int] = {}  # workload or instance -> true time at which the cancel was answered
        self.retried: dict[
            str, int
        ] = {}  # workload -> how often somebody asked to run it, or another of its name, again
        self.tokens: dict[int, str] = {}  # every attempt that was ever on disk -> its node
        self._writers: dict[int, str] = {}  # epoch -> who committed in it
        self._settings = SettingsCheckers(self.policies)
        self.living = LivingCheckers(world, truth, self.retried)
        self._token_max = 0  # before the commit that is being looked at

    # the server

    def stepped(self, state: State, done: Step) -> None:
        """After every step, before anybody hears of it."""
        self.steps += 1
        self._state = state
        for trouble in check(state):
            raise Wrong(f"after a step: {trouble}")
        if state.dirty:
            raise Wrong(f"a step did not save {list(state.dirty)}")
        if self.steps % ASK_WHY_EVERY == 0 and not (done.wake_at_ms is not None and done.wake_at_ms <= state.now_ms):
            self._everybody_knows_why(state)

    def committed(self, changes: Sequence[Change], server: str = "", epoch: int = 0) -> None:
        """After every write to the disk, also of one whose writer never hears of it."""
        self.commits += 1
        if self._writers.setdefault(epoch, server) != server or epoch < max(self._writers):
            raise Wrong(f"{server} has committed with epoch {epoch}; leaders were {self._writers}")
        for kind, key, value in changes:
            if kind == "workload":
                self._workload_written(key, value)
        for kind, key, value in changes:
            if kind == "instance":
                self._instance_written(key, value)
        self._settings.committed(changes)
        self.living.committed(changes)
        follow(self._mirror, self._mirror.revision + 1, changes)
        self._token_max = max(self.tokens, default=0)

    def loaded(self, state: State) -> None:
        """After every load: what was told is still true."""
        self._state = state
        for trouble in check(state):
            raise Wrong(f"after a load: {trouble}")
        self.what_was_told_is_true()

    def forgotten(self) -> None:
        """The disk is empty again. What runs and which tokens were given out is true all the same."""
        for known in (self.serials, self.disk, self.told, self.accepted, self.cancelled):
            known.clear()
        self._writers.clear()
        self._mirror = mirror(Snapshot(0, []))
        self._settings.forgotten()
        self.living.forgotten()

    def acted(self, state: State, done: Step) -> None:
        """When a step is durable: what the outside world learns now has to be true for ever."""
        if self.commits % LOAD_EVERY == 0 and done.changes:
            self._same_as_disk(state)
        for node, status, cause in done.nodes:
            self._world.tell("server", f"{node} is {status}: {cause}")
            if status == "lost":
                machine = state.nodes[node].identity.partition("/")[0] if node in state.nodes else node
                for live in self._truth.leased_on(machine):
                    raise Wrong(f"{node} was given up while {live.run.token} of {live.run.workload} runs there leased")
        self._orders_are_known(done)
        for change in done.changes:
            if change.kind == "instance" and change.value is not None:
                instance = _INSTANCE.decode(change.value)
                if instance.state in FINISHED:
                    serial = self._serial_of(instance.workload)
                    self.told[change.key] = _known(instance, serial)
                else:
                    self.told.pop(change.key, None)

    # the agents

    def followed(self, actor: Actor, session: int, generation: int) -> None:
        """After every word an agent got: it went forward, and what it believes to be known is on disk."""
        if actor.session == session and actor.generation < generation:
            raise Wrong(f"{actor.node} went back from orders {generation} to {actor.generation}")
        for token, attempt in actor.attempts.items():
            if attempt.state == "ended" and 0 < attempt.sent <= actor.acknowledged:
                known = self.disk.get(f"{attempt.run.workload}.{attempt.run.index}")
                if known is not None and known.token == token and known.state in RUNS:
                    raise Wrong(f"{actor.node} was told that the end of {token} is known, the disk says {known}")

    def caught_up(self, actor: Actor) -> None:
        """With every beat: an agent that has followed all orders has what it is to run."""
        state, node = self._state, actor.node
        if node not in state.nodes or state.nodes[node].session != actor.session:
            return
        if state.contacts[node].generation == actor.generation:
            for token in state.held[node]:
                if token not in actor.attempts:
                    raise Wrong(f"{actor.node} has followed all orders up to {actor.generation} and lacks {token}")

    # the clients

    def answered_submit(self, key: str) -> None:
        """A client was told that its workload is taken in."""
        if self.forgetful or key in self.swept:
            return
        self.accepted[key] = True
        if key not in self.serials:
            raise Wrong(f"{key} was accepted and is not on disk")

    def answered_cancel(self, key: str) -> None:
        """A client was told that a workload or an instance is being stopped."""
        workload = key if key in self.policies else key.rpartition(".")[0]
        if not self.retried.get(workload) and not self.forgetful:  # otherwise nobody can say which of the two came last
            self.cancelled[key] = self._world.now

    def asks_retry(self, key: str) -> None:
        """A client is about to ask for another run: endings may change again from here on."""
        self.retried[key] = self.retried.get(key, 0) + 1
        for known in (self.told, self.cancelled):
            for each in [each for each in known if each == key or each.rpartition(".")[0] == key]:
                del known[each]

    def replaces(self, key: str) -> None:
        """A client is about to use a finished workload's name again: what was known of the old one is over."""
        self.asks_retry(key)
        self.accepted.pop(key, None)

    def asks_drain(self, node: str, deadline_ms: int) -> None:
        """A client is about to take a node out of service."""
        self.living.asks_drain(node, deadline_ms)

    # what they check

    def what_was_told_is_true(self) -> None:
        """Endings do not change, and what was accepted is there."""
        for key, told in self.told.items():
            known = self.disk.get(key)
            if known != told and not self.retried.get(key.rpartition(".")[0]):
                raise Wrong(f"{key} was told to be {told}, the disk says {known}")
        for key in self.accepted:
            if key not in self.serials:
                raise Wrong(f"{key} was accepted and is not on disk any more")

    def _workload_written(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._workload_swept(key)
            return
        workload = _WORKLOAD.decode(value)
        before = self.serials.get(key, 0)
        if workload.serial < before:
            raise Wrong(f"{key} had serial {before} and has {workload.serial} now")
        self.serials[key] = workload.serial
        self.policies[key] = workload

    def _workload_swept(self, key: str) -> None:
        """What is over for long enough, or one finished workload too many, may be forgotten; what runs may not."""
        for live in self._truth.live.values():
            if live.run.workload == key and live.run.leased and not self.forgetful:
                raise Wrong(f"{key} was forgotten while {live.run.token} runs on {live.host}")
        self.swept[key] = True
        self.serials.pop(key, None)
        self.accepted.pop(key, None)
        for each in [each for each in self.told if each.rpartition(".")[0] == key]:
            del self.told[each]

    def _instance_written(self, key: str, value: bytes | None) -> None:
        if value is None:
            gone = self.disk.pop(key, None)
            if gone is not None and not self.forgetful:
                self._gone_for_good(key, gone)
            workload, _, index = key.rpartition(".")
            if workload in self.serials and int(index) >= self.policies[workload].count:
                self.told.pop(key, None)  # it stood in for others, and is not needed any more
            return
        instance = _INSTANCE.decode(value)
        serial = self._serial_of(instance.workload)
        new, old = _known(instance, serial), self.disk.get(key)
        if old is not None and new.attempt < old.attempt and self.policies[instance.workload].policy.kind == "service":
            self._gone_for_good(key, old)
            old = None  # it stood in for others once, and does so again
        if old is not None and old.serial == serial:
            if new.token < old.token or new.attempt < old.attempt:
                raise Wrong(f"{key} went back from {old} to {new}")
            later = self.forgetful and new.token > old.token  # of which another agent spoke later
            if old.state in FINISHED and new != old and not later and not self.retried.get(instance.workload):
                raise Wrong(f"{key} had ended as {old} and is {new} now")
        if new.token and new.token not in self.tokens:
            if new.token <= self._token_max:
                raise Wrong(f"{key} got token {new.token}, {self._token_max} was given out before")
            self.tokens[new.token] = instance.node
            self._tried_often_enough(instance, serial)
        if new.state != (old.state if old else ""):
            self._world.tell("disk", f"{key} {new.state} token {new.token}: {instance.cause}")
        self.disk[key] = new
        live = self._truth.live.get(new.token)
        if new.state not in HOLDING and live is not None and live.run.leased:
            raise Wrong(f"{key} is {new.state} ({instance.cause}) while {new.token} runs on {live.host}")
        if new.state in FINISHED and new.token:
            self._ending_is_true(instance)

    def _gone_for_good(self, key: str, old: Known) -> None:
        live = self._truth.live.get(old.token)
        if live is not None and live.run.leased:
            raise Wrong(f"{key} was forgotten while {old.token} runs on {live.host}")

    def _ending_is_true(self, instance: Instance) -> None:
        """What the disk says of an ending is what really happened."""
        ending = self._truth.endings.get(instance.token)
        if instance.state == "succeeded" and (ending is None or (ending.cause, ending.code) != ("exited", 0)):
            raise Wrong(f"{instance.key} is told to have succeeded; really: {ending}")
        if instance.state == "timed_out" and (ending is None or ending.cause != "timed_out"):
            raise Wrong(f"{instance.key} is told to have timed out; really: {ending}")
        if instance.state == "failed" and instance.exit_code is not None:
            if ending is None or ending.code != instance.exit_code:
                raise Wrong(f"{instance.key} is told to have failed with {instance.exit_code}; really: {ending}")

    def _tried_often_enough(self, instance: Instance, serial: int) -> None:
        policy = self.policies[instance.workload].policy
        if policy.kind != "job" or self.retried.get(instance.workload):
            return
        tokens = self._truth.by_slot.get((instance.workload, serial, instance.index), [])
        failed = sum(1 for token in tokens if self._failed(token))
        # Each failure may have been told as one, or have got lost with its node; both have their own limit.
        if failed > 2 * (policy.retries_max + 1):
            raise Wrong(f"{instance.key} failed {failed} times, {policy.retries_max} retries are allowed")

    def _failed(self, token: int) -> bool:
        ending = self._truth.endings.get(token)
        return ending is not None and (ending.cause == "timed_out" or (ending.cause == "exited" and ending.code != 0))

    def _orders_are_known(self, done: Step) -> None:
        """What a node is told to run is on disk as its own, and is nothing that a client was told is cancelled."""
        for orders in done.assignments:
            for order in orders.orders:
                if isinstance(order, Run) and self.tokens.get(order.token) != orders.node:
                    raise Wrong(f"{orders.node} is to run {order.token}, the disk says {self.tokens.get(order.token)}")
        for placed in done.placed:
            workload = placed.instance.rpartition(".")[0]
            for key in (workload, placed.instance):
                if self.cancelled.get(key, self._world.now) < self._world.now:
                    raise Wrong(f"{placed.instance} was placed after {key} had been cancelled")

    def _everybody_knows_why(self, state: State) -> None:
        for workload in state.workloads.values():
            waits = [
                instance.index
                for index in range(state.begun(workload))
                if (instance := state.instances.get(f"{workload.key}.{index}")) and instance.state == "queued"
            ]
            if state.has_fresh(workload) or (workload.waits and state.begun(workload) < workload.count):
                waits.append(state.begun(workload))
            for index in waits[:1]:
                reason = why(state, workload.key, index)
                if reason.code not in WAITING_CODES or not reason.words:
                    raise Wrong(f"{workload.key}.{index} waits and nobody knows why: {reason}")

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

    def _serial_of(self, workload: str) -> int:
        if workload not in self.serials:
            raise Wrong(f"an instance of {workload} is on disk without it")
        return self.serials[workload]


def _known(instance: Instance, serial: int) -> Known:
    return Known(serial, instance.state, instance.token, instance.attempt, instance.exit_code)
