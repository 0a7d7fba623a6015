"""The state: what is stored, and the indexes derived from it. Changed only by the functions of this package."""

from heapq import heappush
from typing import Any

import msgspec

from roost.core.charge import charge
from roost.core.claim import Claim, claim_of
from roost.core.fleet import Fleet
from roost.core.fragments import Shapes
from roost.core.hold import Hold
from roost.core.hold_gang import GangHold
from roost.core.order import FOREVER, Entry, Key, Line, Queue, start_by_ms
from roost.core.shortlist import Shortlists
from roost.core.trouble import Trouble
from roost.model.frames import Usage
from roost.model.instance import Instance
from roost.model.node import FLAKY, Facts, Node
from roost.model.project import Pool, Project, Reservation, facts_in_pool
from roost.model.states import FINISHED
from roost.model.workload import After, Policy, Workload
from roost.ports.store import Change

ALL = -1  # in place of an index: all of a workload
SERIALS_RESERVED = 100_000  # serials promised per write of the meta record: one extra row in 100,000 placements
SERIALS_PER_MS = 1_000  # an empty store begins at now * this, so a server without memory never reuses a token
POLICIES_MAX = 10_000  # shared at a time, some 5 MB; whoever needs more gains little by sharing
GONE_AFTER_MS = 86_400_000  # a lost node that holds nothing is forgotten after a day


class Settings(msgspec.Struct, frozen=True):
    """What an operator chose. The inequality beat < lease is checked where settings are read."""

    strategy: str = "least_loaded"
    lease_ms: int = 4_000
    lease_margin_ms: int = 400  # for the keeper to have killed what its lease no longer covers
    grace_ms: int = 0  # how much longer a leader that has lost its store may answer agents
    seed: int = 0
    placements_max: int = 2_000  # per pass: bounds a commit to some hundred kilobytes
    patience_ms: int = 30_000  # who waits longer gets a place kept for it, which only who is gone in time may pass
    preempt_margin: int = 20  # by how much a priority must be higher to stop what runs; 0: it never does
    ahead_max: int = 8  # short runs that may stand behind one that runs
    adopts: bool = True  # a node is believed what it runs of an earlier life: only for a store that forgets
    finished_max: int = 200_000  # finished instances kept in memory, about 200 MB; the oldest workloads go first


class Meta(msgspec.Struct):
    """The few facts that belong to no object."""

    born: int = 0  # the first serial of this state; smaller tokens were given out by an earlier life
    reserved: int = 0  # serials below this may be in use
    cursors: dict[str, str] = {}  # strategy -> node it chose last
    typical: Shapes = ()  # what work usually asks for, where a strategy wants to know
    typical_due_ms: int = 0  # when to look again
    lease_ms: int = 0  # the longest lease that an agent may hold: of this server, or of one before it
    sudden_ms: int = 0  # when the lead was last taken from somebody who had not let go
    maintenance: str = ""  # why nothing is placed, moved or given up; empty: there is no maintenance
    maintenance_since_ms: int = 0
    maintenance_until_ms: int = 0  # 0: until somebody ends it


class Contact:
    """What is known of a node only while the server lives: its stream, its lease, its measured use."""

    __slots__ = ("connected", "generation", "ghosts", "lease_until_ms", "silent", "usage")

    def __init__(self, lease_until_ms: int) -> None:
        self.connected = False
        self.silent = False  # its stream is there, but nothing was heard for a lease, and it was not given up
        self.lease_until_ms = lease_until_ms
        self.generation = 0
        self.ghosts: dict[int, Claim] = {}  # attempts that were given away and still take room until they end
        self.usage: Usage | None = None

    @property
    def in_touch(self) -> bool:
        """Whether it can be told something."""
        return self.connected and not self.silent


class Progress:
    """How far a workload has come: indexes below `begun` have records; how many of them are in which state."""

    __slots__ = ("begun", "counts")

    def __init__(self) -> None:
        self.begun = 0
        self.counts: dict[str, int] = {}


class State:
    """Everything the core knows. `dirty` gathers what a step changed until `flush` turns it into changes."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.revision = 0
        self.now_ms = 0
        self.meta = Meta()
        self.serial = 0
        self.workloads: dict[str, Workload] = {}
        self.versions: dict[str, Workload] = {}  # PROJECT/NAME@VERSION: what workloads were before they were updated
        self.instances: dict[str, Instance] = {}
        self.nodes: dict[str, Node] = {}
        self.fleet = Fleet()
        self.queue = Queue()
        self.shortlists = Shortlists()
        self.contacts: dict[str, Contact] = {}
        self.progress: dict[str, Progress] = {}
        self.held: dict[str, dict[int, Instance]] = {}
        self.timers: list[tuple[int, str, str]] = []
        self.postponed: list[tuple[int, str, str]] = []  # timers that came due while there is maintenance
        self.silences: dict[str, int] = {}  # pools of which no node is in touch -> since when
        self.failing: dict[str, dict[str, int]] = {}  # workload -> nodes on which it failed last -> when
        self.troubles: dict[str, Trouble] = {}  # node -> its runs that ended badly, as far as that may be its fault
        self.timers_most = 0  # more than this, and those of what has gone are thrown out
        self.lease_timers: set[str] = set()  # nodes that have a timer; only ever asked for members
        self.finished: dict[str, None] = {}  # keys of finished workloads, oldest first
        self.finished_instances = 0
        self.projects: dict[str, Project] = {}
        self.pools: dict[str, Pool] = {}
        self.reservations: dict[str, Reservation] = {}
        self.charged: dict[str, dict[str, int]] = {}  # project -> what its instances hold
        self.priorities: dict[int, int] = {}  # priority -> how many instances of it hold room
        self.gangs: dict[str, dict[str, None]] = {}  # gang -> keys of its workloads
        self.followers: dict[int, Instance] = {}  # attempt -> who stands behind it
        self.recalls: set[str] = set()  # nodes with a timer to call back who stands behind for long; only for members
        self.lengths: dict[Key, int] = {}  # how long runs of a line take, in ms
        self.holds: dict[Line, Hold] = {}  # where the heads of lines are to start
        self.gang_holds: dict[Line, GangHold] = {}
        self.making_room: dict[str, str] = {}  # instance -> the node on which others are being stopped for it
        self.look_at_ms = 0  # when the queue is looked at again although nothing happened; 0: never
        self.preempted = self.cycles = 0  # how often; and by whom it had preempted itself: must stay 0
        self.moving_ms = 0  # since when things can happen: this server leads, and there is no maintenance
        self.restless: dict[str, int] = {}  # services of which something is to be done, and when that was looked at
        self.unsettled: dict[str, None] = {}  # those of them that changed since they were looked at
        self.rejectable: list[str] = []  # keys of workloads that do not want to wait, until a pass has seen them
        self.dependants: dict[str, dict[str, None]] = {}  # workload -> those that wait for it
        self.listeners: dict[str, dict[str, None]] = {}  # of these, those to whom each of its instances matters
        self.news: dict[str, dict[int, None]] = {}  # workload others wait for -> instances that came further; ALL
        self.schedules: dict[str, None] = {}  # workloads that run by a schedule
        self.runs: dict[str, dict[str, None]] = {}  # schedule -> its runs
        self.ended_runs: dict[str, None] = {}  # schedules of which a run has ended since the last sweep
        self.kept: dict[str, dict[str, bytes]] = {}  # kind -> name -> what is stored for others, not read by a rule
        self.audited = 0  # the number of the last entry of the audit log
        self.policies: dict[Policy, Policy] = {}
        self.dirty: dict[tuple[str, str], Any] = {}

    # what the queue asks

    def begun(self, workload: Workload) -> int:
        """The first index that has never been placed."""
        progress = self.progress.get(workload.key)
        return progress.begun if progress else 0

    def first_fresh(self, workload: Workload) -> int:
        """The first index that was never placed and still shall be; -1 if there is none."""
        key = workload.key
        if workload.rest or workload.waits or workload.policy.schedule or self.workloads.get(key) is not workload:
            return -1
        progress = self.progress.get(key)
        begun = progress.begun if progress else 0
        return begun if begun < workload.count else -1

    def has_fresh(self, workload: Workload) -> bool:
        """Whether some of its instances were never placed and still shall be."""
        return self.first_fresh(workload) >= 0

    def waits_again(self, entry: Entry) -> bool:
        """Whether an instance in the queue is still waiting for another attempt, and of this version."""
        _, serial, index, key, version = entry
        workload = self.workloads.get(key)
        if workload is None or workload.serial != serial:
            return False
        instance = self.instances.get(f"{key}.{index}")
        if instance is None or instance.state != "queued" or instance.version != version:
            return False
        return instance.ready_ms <= self.now_ms and not instance.waits

    # what every rule uses

    def spec_of(self, instance: Instance) -> Workload:
        """What an instance runs, or is to run: its workload as it is, or as it was at an earlier version."""
        workload = self.workloads[instance.workload]
        if instance.version == workload.version:
            return workload
        return self.versions[f"{instance.workload}@{instance.version}"]

    def next_serial(self) -> int:
        """The next token or age. They only grow, also over restarts."""
        self.serial += 1
        if self.serial >= self.meta.reserved:
            self.meta.reserved = self.serial + SERIALS_RESERVED
            self.touch_meta()
        return self.serial

    def settled_ms(self) -> int:
        """When every lease has ended that a server before this one, of which nothing is known, may have given."""
        return self.meta.born // SERIALS_PER_MS + self.settings.lease_ms + self.settings.lease_margin_ms

    def progress_of(self, workload: Workload) -> Progress:
        """The progress of a workload, made on first use: what only waits has none."""
        progress = self.progress.get(workload.key)
        if progress is None:
            progress = self.progress[workload.key] = Progress()
        return progress

    def occupy(self, workload: Workload, instance: Instance) -> None:
        """An instance takes room on its node; one that stands behind another takes none yet."""
        self.held[instance.node][instance.token] = instance
        if instance.behind:
            return
        self.fleet.take(instance.node, claim_of(workload, instance))
        charge(self, workload.project, workload.policy.ask, 1)
        priority = workload.policy.priority
        self.priorities[priority] = self.priorities.get(priority, 0) + 1

    def vacate(self, workload: Workload, instance: Instance) -> None:
        """It gives the room back."""
        del self.held[instance.node][instance.token]
        if instance.behind:
            return
        self.fleet.take(instance.node, claim_of(workload, instance), -1)
        charge(self, workload.project, workload.policy.ask, -1)
        priority = workload.policy.priority
        self.priorities[priority] -= 1
        if not self.priorities[priority]:
            del self.priorities[priority]

    def lowest_priority(self) -> int:
        """The least that matters of all that holds room; above all if nothing does."""
        return min(self.priorities, default=101)

    def join_fleet(self, name: str, facts: Facts) -> None:
        """Let a node tell what it offers; its pool may promise more than there is, and says what it does not say."""
        pool, node = self.pools.get(facts.pool), self.nodes.get(name)
        facts = facts_in_pool(facts, pool) if pool else facts
        if node is not None and node.flaky_until_ms:
            facts = msgspec.structs.replace(facts, taints=(*facts.taints, FLAKY))
        self.fleet.join(name, facts, pool.overcommit if pool else {})

    def open_node(self, node: Node) -> None:
        """Let a node take new work or not: by its own status, and by that of its pool."""
        pool, in_touch = self.pools.get(node.facts.pool), self.contacts[node.name].in_touch
        closed = "draining" if node.status == "drained" else node.status if node.status != "ready" else ""
        if not closed and pool is not None and pool.status != "ready":
            words = "has failed" if pool.status == "failed" else "is draining"
            closed = f"in pool {pool.name}, which {words}" + (f": {pool.reason}" if pool.reason else "")
        is_open = in_touch and not closed
        self.fleet.set_open(node.name, is_open=is_open, is_online=in_touch, closed=closed if in_touch else "")

    def settle_pool(self, name: str) -> None:
        """A pool has changed: so have its nodes, and who may go there."""
        pool = self.pools.get(name)
        fallback = pool.fallback if pool is not None and pool.status == "failed" else ""
        self.fleet.set_pool(name, fallback, pool.projects if pool is not None else ())
        for node in self.nodes.values():
            if node.facts.pool == name:
                self.join_fleet(node.name, node.facts)
                self.open_node(node)

    def look_at(self, when_ms: int) -> None:
        """Look at the queue again at a time, whatever happens until then."""
        if when_ms > self.now_ms and (not self.look_at_ms or when_ms < self.look_at_ms):
            self.look_at_ms = when_ms
            self.at(when_ms, "look", "")

    def wait_for(self, workload: Workload, waits: tuple[After, ...]) -> None:
        """Let a workload wait for these and nothing else: the one place where it is noted who waits for whom."""
        key = workload.key
        for each in workload.waits:
            for index in (self.dependants, self.listeners):
                others = index.get(each.workload, {})
                others.pop(key, None)
                if not others:
                    index.pop(each.workload, None)
        for each in waits:
            self.dependants.setdefault(each.workload, {})[key] = None
            if each.each or each.when == "started":
                self.listeners.setdefault(each.workload, {})[key] = None
        workload.waits = waits

    def tell_dependants(self, key: str, index: int = ALL) -> None:
        """Something became of a workload, or of one of its instances, that may matter to those who wait for it."""
        if key in (self.dependants if index == ALL else self.listeners):
            self.news.setdefault(key, {})[index] = None

    def rouse(self, key: str) -> None:
        """Something of a service is to be replaced, moved or retired: it is looked at until that is done."""
        self.restless[key] = 0
        self.unsettled[key] = None

    def at(self, when_ms: int, kind: str, key: str) -> None:
        """Look at something again at a time; whoever is woken checks whether it still matters."""
        heappush(self.timers, (when_ms, kind, key))

    def watch_lease(self, name: str) -> None:
        """Look at a node again when its lease ends; one timer per node is enough, it is set again when it fires. After
        a grace leases are shorter again, so no timer is further away than a lease."""
        if name not in self.lease_timers:
            self.lease_timers.add(name)
            longest = self.now_ms + self.meta.lease_ms + self.settings.lease_margin_ms
            self.at(min(self.contacts[name].lease_until_ms, longest), "lease", name)

    def shared(self, policy: Policy) -> Policy:
        """One object for equal policies."""
        if policy not in self.policies and len(self.policies) >= POLICIES_MAX:
            self.policies.clear()
        return self.policies.setdefault(policy, policy)

    def touch_workload(self, workload: Workload) -> None:
        self.dirty["workload", workload.key] = workload

    def touch_instance(self, instance: Instance) -> None:
        self.dirty["instance", instance.key] = instance

    def touch_node(self, node: Node) -> None:
        self.dirty["node", node.name] = node

    def touch_meta(self) -> None:
        self.dirty["meta", "meta"] = self.meta

    def last_of(self, kind: str, key: str) -> Change:
        """A record that changed, as it is now."""
        return Change(kind, key, _ENCODER.encode(self.dirty[kind, key]))

    def flush(self) -> list[Change]:
        """What changed since the last flush, encoded now because records are changed in place."""
        encode = _ENCODER.encode
        changes = [
            Change(kind, key, None if record is None else encode(record)) for (kind, key), record in self.dirty.items()
        ]
        self.dirty.clear()
        return changes


def watch_reservation(state: State, reservation: Reservation) -> None:
    """Look at a reservation when it begins and when it ends."""
    for moment in (reservation.start_ms, reservation.end_ms):
        if moment:
            state.at(max(moment, state.now_ms), "reservation", reservation.name)


def watch_queue(state: State, workload: Workload) -> None:
    """Set the timers for what may not wait for ever. A schedule may: each of its runs has limits of its own."""
    if workload.policy.schedule:
        return
    start_by = start_by_ms(workload)
    timeout_ms = workload.policy.queue_timeout_ms
    if timeout_ms:
        state.at(waiting_since_ms(workload) + timeout_ms, "queue", workload.key)
    if timeout_ms and any(each.each for each in workload.policy.after):
        for index in range(state.begun(workload)):  # each was released at a time of its own
            instance = state.instances.get(f"{workload.key}.{index}")
            if instance is not None and instance.state == "queued" and not instance.waits:
                state.at(instance.since_ms + timeout_ms, "queue", workload.key)
    if start_by != FOREVER:
        state.at(start_by, "queue", workload.key)


def waiting_since_ms(workload: Workload) -> int:
    """Since when it waits for nothing but room."""
    return max(workload.submitted_ms, workload.released_ms)


def is_over(state: State, workload: Workload) -> bool:
    """Whether nothing of a workload lives or will ever start again."""
    progress = state.progress.get(workload.key)
    if not workload.rest and (not _can_end(workload) or progress is None or progress.begun < workload.count):
        return False
    return progress is None or all(state in FINISHED or not number for state, number in progress.counts.items())


def _can_end(workload: Workload) -> bool:
    restart = workload.policy.restart
    return workload.policy.kind == "job" or (restart is not None and restart.when != "always")


_ENCODER = msgspec.msgpack.Encoder()
