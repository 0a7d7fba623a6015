"""The stored records, what a step changed of them, and what can be counted from them."""

from copy import copy
from typing import Any, NamedTuple

import msgspec

from roost.core.state.outcome import Paced
from roost.core.state.queue import Entry
from roost.core.state.shared import Shared
from roost.core.state.workload_mix import Shapes
from roost.model.errors import NotFound
from roost.model.reasons.reason import Reason
from roost.model.records.cache import CacheEntry
from roost.model.records.files import FileSet
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.project import Pool, Project, Reservation
from roost.model.records.transition import InstanceTransition
from roost.model.records.usage import DayUsage, TypicalNeed
from roost.model.records.workload import Policy, Workload
from roost.model.states import InstanceState
from roost.ports.store import Change

SERIALS_RESERVED = 100_000  # serials promised per write of the meta record: one extra row in 100,000 placements
SERIALS_PER_MS = 1_000  # an empty store begins at now * this, so a server without memory never reuses a token
# Grows with every change of the stored records that an earlier release would misread; docs/contributing/format.md.
FORMAT = 1
FLUSHED_PER_UNIT = 2  # changes: 2 us each, 5 us with a long story
POLICIES_MAX = 10_000  # shared at a time, some 5 MB; more would gain little


class Settings(msgspec.Struct, frozen=True):
    """The settings of an operator. Heartbeat < lease is checked where settings are read."""

    strategy: str = "least_loaded"
    server: str = ""  # the name of this server among those that share a store; "": it is alone
    lease_ms: int = 4_000
    lease_margin_ms: int = 400  # for the keeper to have killed what its lease no longer covers
    grace_ms: int = 0  # how much longer a leader that has lost its store may answer agents
    seed: int = 0
    placements_max: int = 2_000  # per pass, 45 us each; fewer cost more frames: a node gets its orders one by one
    step_units: int = 2_500  # of work in one step, 10 us each: 25 ms, and what `Step.limit` adds
    backfill_after_ms: int = 30_000  # a head that is pending for longer gets a backfill reservation
    preempt_margin: int = 20  # by how much a priority must be higher to stop what runs; 0: it never does
    prefill_max: int = 8  # short runs that may be prefilled behind a running one
    adopts: bool = True  # adopt running attempts that agents report: only for the in-memory store
    awaits_agents: bool = False  # an earlier server without memory gave orders: nothing is placed before its leases end
    finished_max: int = 200_000  # finished instances kept in memory, about 200 MB; the oldest workloads go first
    results_max: int = 256 << 20  # bytes of results in memory: as much as all else of 200,000 finished instances
    project_results_max: int = 64 << 20  # of one project: 1,024 of the largest, or 670 bytes of 100,000 instances


class StoredFormat(msgspec.Struct):
    """The format of all records and who wrote them, out of the meta record of any release."""

    format: int = FORMAT
    release: str = ""


class Meta(msgspec.Struct, forbid_unknown_fields=True):
    format: int = FORMAT
    release: str = ""  # of Roost that led last
    leaders: tuple[str, ...] = ()  # names of servers that have led, the last one at the end
    first_serial: int = 0  # the first serial of this state; smaller tokens are of an earlier store
    reserved: int = 0  # serials below this may be in use
    cursors: dict[str, str] = {}  # strategy -> node it chose last
    typical: Shapes = ()  # the typical mix of work, where a strategy needs it
    typical_due_ms: int = 0  # when to learn it again
    lease_ms: int = 0  # the longest lease that an agent may hold: of this server, or of one before it
    unclean_takeover_ms: int = 0  # when the last unclean takeover was
    maintenance: str = ""  # its reason; empty: there is no maintenance
    maintenance_since_ms: int = 0
    maintenance_until_ms: int = 0  # 0: until an operator ends it


class Progress(msgspec.Struct):
    """Instances of a workload by state. Indexes below `placed_count` have records."""

    placed_count: int = 0
    counts: dict[InstanceState, int] = {}

    def __copy__(self) -> "Progress":
        return Progress(self.placed_count, dict(self.counts))


class FileUsage(NamedTuple):
    """Of sets of files, each of them once."""

    files: int = 0
    size: int = 0


class StoredRecords:
    """Records by key. `dirty` has what a step changed until `flush` turns it into changes."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.revision = 0
        self.now_ms = 0
        self.active_since_ms = 0  # since when this server leads without maintenance
        self.meta = Meta()
        self.serial = 0
        self.workloads: dict[str, Workload] = {}
        self.versions: dict[str, Workload] = {}  # PROJECT/NAME@VERSION: what workloads were before they were updated
        self.instances: dict[str, Instance] = {}
        self.nodes: dict[str, Node] = {}
        self.projects: dict[str, Project] = {}
        self.pools: dict[str, Pool] = {}
        self.reservations: dict[str, Reservation] = {}
        self.opaque_records: dict[str, dict[str, bytes]] = {}  # kind -> name -> value, not read by a rule
        self.caches: dict[str, dict[str, CacheEntry]] = {}  # project -> key -> entry
        self.usage: dict[int, dict[str, DayUsage]] = {}  # day -> project -> what its attempts have had and used
        self.usage_entries = 0  # workloads in them
        self.needs: dict[str, TypicalNeed] = {}  # PROJECT/NAME -> what its last runs used
        self.audited = 0  # the number of the last entry of the audit log
        self.progress: dict[str, Progress] = {}
        self.finished: dict[str, None] = {}  # keys of finished workloads, oldest first
        self.finished_instances = 0
        self.result_bytes: dict[str, int] = {}  # project -> bytes of the results of its instances
        self.result_bytes_all = 0
        self.file_sets: dict[str, dict[FileSet, int]] = {}  # project -> set -> records that name it
        self.file_usage: dict[str, FileUsage] = {}  # project -> what its sets have together
        self.policies: dict[Policy, Policy] = {}
        self.dirty: dict[tuple[str, str], Any] = {}

    def copy_records(self, origin: "StoredRecords") -> None:
        """Copy another; each record is copied when it is first read."""
        StoredRecords.__init__(self, origin.settings)
        for name in ("revision", "now_ms", "serial", "active_since_ms", "audited"):
            setattr(self, name, getattr(origin, name))
        for name in ("finished_instances", "result_bytes_all", "usage_entries"):
            setattr(self, name, getattr(origin, name))
        for name in ("workloads", "versions", "instances", "nodes", "progress"):
            setattr(self, name, Shared(getattr(origin, name), copy))
        for name in ("projects", "pools", "reservations", "finished", "policies", "result_bytes", "file_usage"):
            setattr(self, name, dict(getattr(origin, name)))
        self.needs = dict(origin.needs)
        self.file_sets = Shared(origin.file_sets, dict)
        self.caches = Shared(origin.caches, dict)
        self.usage = Shared(origin.usage, dict)
        self.opaque_records = origin.opaque_records
        self.meta = msgspec.structs.replace(origin.meta, cursors=dict(origin.meta.cursors))

    def known_workload(self, key: str) -> Workload:
        if key not in self.workloads:
            raise NotFound(f"there is no workload {key}", params={"workload": key})
        return self.workloads[key]

    def known_node(self, name: str) -> Node:
        if name not in self.nodes:
            raise NotFound(f"there is no node {name}", params={"node": name})
        return self.nodes[name]

    def placed_count(self, workload: Workload) -> int:
        progress = self.progress.get(workload.key)
        return progress.placed_count if progress else 0

    def first_unstarted(self, workload: Workload) -> int:
        """The first index that was never placed and is pending; -1 if there is none."""
        key = workload.key
        if (
            workload.unstarted_end_state
            or workload.pending_conditions
            or workload.policy.schedule
            or self.workloads.get(key) is not workload
        ):
            return -1
        progress = self.progress.get(key)
        begun = progress.placed_count if progress else 0
        return begun if begun < workload.count else -1

    def has_unstarted(self, workload: Workload) -> bool:
        return self.first_unstarted(workload) >= 0

    def is_requeued(self, entry: Entry) -> bool:
        """Whether an entry of the queue is still pending, and of the version of its instance."""
        _, serial, index, key, version = entry
        workload = self.workloads.get(key)
        if workload is None or workload.serial != serial or workload.cancelling is not None:
            return False
        instance = self.instances.get(f"{key}.{index}")
        if instance is None or instance.state != InstanceState.QUEUED or instance.version != version:
            return False
        return instance.not_before_ms <= self.now_ms and not instance.blocked_on_dependency

    def spec_of(self, instance: Instance) -> Workload:
        """The workload of an instance, in the version that the instance runs or is to run."""
        workload = self.workloads[instance.workload]
        if instance.version == workload.version:
            return workload
        return self.versions[f"{instance.workload}@{instance.version}"]

    def next_serial(self) -> int:
        """The next token or age. Serials only grow, also over restarts."""
        self.serial += 1
        if self.serial >= self.meta.reserved:
            self.meta.reserved = self.serial + SERIALS_RESERVED
            self.touch_meta()
        return self.serial

    def adoption_deadline_ms(self) -> int:
        """When every lease has ended that a server before this store was made may have granted."""
        return self.meta.first_serial // SERIALS_PER_MS + self.settings.lease_ms + self.settings.lease_margin_ms

    def progress_of(self, workload: Workload) -> Progress:
        progress = self.progress.get(workload.key)
        if progress is None:
            progress = self.progress[workload.key] = Progress()
        return progress

    def new_instance(self, workload: Workload, index: int, reason: Reason, at_ms: int) -> Instance:
        key = workload.key
        instance = Instance(key, index, version=workload.version)
        instance.story = (InstanceTransition(at_ms, None, instance.state, reason, self.revision + 1),)
        self.instances[f"{key}.{index}"] = instance
        progress = self.progress.get(key) or self.progress_of(workload)
        progress.counts[instance.state] = progress.counts.get(instance.state, 0) + 1
        if progress.placed_count <= index:
            progress.placed_count = index + 1
        return instance

    def intern_policy(self, policy: Policy) -> Policy:
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

    def encoded_record(self, kind: str, key: str) -> bytes:
        return _ENCODER.encode(self.dirty[kind, key])

    def flush(self) -> Paced[list[Change]]:
        """The changes since the last flush, encoded now because records are changed in place."""
        encode = _ENCODER.encode
        changes: list[Change] = []
        for (kind, key), record in self.dirty.items():
            changes.append(Change(kind, key, None if record is None else encode(record)))
            if not len(changes) % FLUSHED_PER_UNIT:
                yield 1
        self.dirty.clear()
        return changes


_ENCODER = msgspec.msgpack.Encoder()
