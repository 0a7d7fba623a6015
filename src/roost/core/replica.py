"""The state from the store: mirrored, followed commit by commit, and taken over.

A server that starts, one that recovers and a standby do the same: `mirror`, `follow`, `take_over`. The mirror has the
records and what can be counted from them. The takeover makes queue, timers and leases: only the leader needs them, and
they depend on when it begins.
"""

from collections.abc import Iterable
from sys import intern
from typing import Any

from msgspec import MsgspecError
from msgspec.msgpack import Decoder
from msgspec.structs import replace

from roost import __version__
from roost.core.dependencies.release import depends_by_element, enqueue
from roost.core.placement.gpu.fragmentation import expect
from roost.core.queue.gang import join_gang
from roost.core.state.dependencies import link, unlink
from roost.core.state.files import count_instance_files, count_workload_files, set_cache
from roost.core.state.liveness import NodeLiveness
from roost.core.state.records import FORMAT, SERIALS_PER_MS, Meta, Settings, StoredFormat
from roost.core.state.results import count_result
from roost.core.state.state import GONE_AFTER_MS, State
from roost.core.state.timers import TimerKind
from roost.core.state.usage import set_day
from roost.core.state.versions import shrink
from roost.core.transitions import prefill
from roost.core.watch import watch_pool, watch_queue, watch_reservation, watch_schedule
from roost.model.reasons.reason import share
from roost.model.records.cache import CacheEntry
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.opaque import OPAQUE_KINDS, Audit
from roost.model.records.project import Pool, Project, Reservation
from roost.model.records.usage import DayUsage, TypicalNeed
from roost.model.records.workload import DEFAULT_RESTART, Workload
from roost.model.states import ABSENT, ALLOCATED, InstanceState, NodeStatus, WhenFull, WorkloadKind
from roost.ports.store import Change, Damaged, Snapshot, StoreError

LEADERS_MAX = 8  # remembered names; two or three servers share a store


def load(snapshot: Snapshot, now: int, settings: Settings | None = None, *, unclean: bool = False) -> State:
    state = mirror(snapshot, settings)
    take_over(state, now, unclean=unclean)
    return state


def mirror(snapshot: Snapshot, settings: Settings | None = None) -> State:
    state = State(settings)
    follow(state, snapshot.revision, snapshot.records)
    in_order = sorted(state.workloads.values(), key=lambda workload: workload.serial)
    state.workloads = {workload.key: workload for workload in in_order}
    return state


def follow(state: State, revision: int, changes: Iterable[Change]) -> None:
    """Apply commits to a mirror. An instance needs its workload and its node: it is removed before them and added after
    them."""
    instances: dict[str, bytes | None] = {}
    others: list[Change] = []
    for change in changes:
        if change.kind == "instance":
            instances[change.key] = change.value
        else:
            others.append(change)
    for key in instances:
        old = state.instances.pop(key, None)
        if old is not None:
            count_result(state, old, -1)
            count_instance_files(state, old, -1)
            state.progress[old.workload].counts[old.state] -= 1
            if old.state in ALLOCATED:
                state.release(state.spec_of(old), old)
    for change in others:
        if change.kind == "meta" and change.value is not None:
            _check_format(change.value)
    for change in others:
        try:
            _RECORDS.get(change.kind, _follow_setting)(state, change.kind, change.key, change.value)
        except MsgspecError as error:
            raise _unreadable(change.kind, change.key, error) from error
    for key, value in instances.items():
        workload = key.rpartition(".")[0]
        if value is None and workload in state.workloads and workload in state.progress:
            shrink(state, state.workloads[workload])  # the instance was beyond the count
    for key, value in instances.items():
        if value is not None:
            try:
                instance = _INSTANCE.decode(value)
            except MsgspecError as error:
                raise _unreadable("instance", key, error) from error
            _enter(state, _with_interned_strings(instance))
    state.revision = revision


def _check_format(meta: bytes) -> None:
    """Before any other record is read: they may be of another layout."""
    try:
        stored = _FORMAT.decode(meta)
    except MsgspecError as error:
        raise _unreadable("meta", "", error) from error
    if stored.format != FORMAT:
        found = f"the records of this store have format {stored.format}, by roost {stored.release or 'unknown'}"
        reads = f"this is roost {__version__} and reads format {FORMAT}"
        advice = "start that release, or restore a backup of this one: docs/guides/upgrade.md"
        raise StoreError(Damaged(f"{found}; {reads}; nothing was changed: {advice}"))


def _unreadable(kind: str, key: str, error: MsgspecError) -> StoreError:
    reason = f"record {kind} {key} cannot be read: {error}; it is damaged, or another release of Roost wrote it"
    return StoreError(Damaged(f"{reason}. `roost store check` lists all such records"))


def take_over(state: State, now: int, *, unclean: bool = False) -> None:
    """Become the leader. Every node gets a whole lease to register again before it can be lost. `unclean`: the last
    leader has not released the lead and may still answer agents, which then have some grace."""
    state.now_ms = state.active_since_ms = now
    grace_ms = _grace_ms(state, now, unclean)
    if not state.meta.first_serial:
        state.meta.first_serial = state.meta.reserved = now * SERIALS_PER_MS
    state.serial = state.meta.reserved
    if state.meta.release != __version__:
        state.meta.release = __version__
        state.touch_meta()
    _remember_leader(state)
    _remember_lease(state, now)
    if state.meta.typical:
        expect(state)
    for reservation in state.reservations.values():
        watch_reservation(state, reservation)
    for node in state.nodes.values():
        _await_node(state, node, now, grace_ms)
    for name in {node.facts.pool: None for node in state.nodes.values()}:
        watch_pool(state, name)
    if state.meta.maintenance_until_ms:
        state.at(state.meta.maintenance_until_ms, TimerKind.MAINTENANCE, "")
    for instance in state.instances.values():
        _await_instance(state, instance)
    for workload in sorted(state.workloads.values(), key=lambda workload: (workload.finished_ms, workload.serial)):
        _await_workload(state, workload)


def _remember_leader(state: State) -> None:
    """Servers that led before may have what is on no other disk: the ends of logs."""
    server, leaders = state.settings.server, state.meta.leaders
    if server and leaders[-1:] != (server,):
        state.meta.leaders = (*(name for name in leaders if name != server), server)[-LEADERS_MAX:]
        state.touch_meta()


def _follow_workload(state: State, _: str, key: str, value: bytes | None) -> None:
    workload = _WORKLOAD.decode(value) if value is not None else None
    existing = state.workloads.get(key)
    if existing is not None:
        count_workload_files(state, existing, -1)
    if existing is not None and (workload is None or workload.serial != existing.serial):
        del state.workloads[key]  # a new one of that name comes last
        state.progress.pop(key, None)
        state.schedules.pop(key, None)
        if existing.parent:
            unlink(state.runs, existing.parent, key)
    if workload is not None:
        workload.policy = state.intern_policy(workload.policy)
        state.workloads[key] = workload
        count_workload_files(state, workload, 1)
        if workload.policy.schedule:
            state.schedules[key] = None
        if workload.parent:
            link(state.runs, workload.parent, key)


def _follow_version(state: State, _: str, key: str, value: bytes | None) -> None:
    existing = state.versions.pop(key, None)
    if existing is not None:
        count_workload_files(state, existing, -1)
    if value is not None:
        state.versions[key] = spec = _WORKLOAD.decode(value)
        spec.policy = state.intern_policy(spec.policy)
        count_workload_files(state, spec, 1)


def _follow_node(state: State, _: str, key: str, value: bytes | None) -> None:
    if value is None:
        if state.nodes.pop(key, None) is not None:
            assert not state.allocated.pop(key), f"{key} is gone and holds something"
            del state.liveness[key]
            state.fleet.leave(key)
        return
    node = state.nodes[key] = _NODE.decode(value)
    state.allocated.setdefault(key, {})
    in_touch = node.status not in (NodeStatus.SUSPECT, *ABSENT)
    state.liveness.setdefault(key, NodeLiveness(0)).connected = in_touch  # with the leader
    state.join_fleet(key, node.facts)
    state.open_node(node)


def _follow_setting(state: State, kind: str, key: str, value: bytes | None) -> None:
    if kind not in _SETTINGS:
        message = "a later version of Roost wrote them, or a copy into this store was not finished"
        raise StoreError(Damaged(f"there are records of kind {kind!r:.60}, which are not known here: {message}"))
    existing, decoder = _SETTINGS[kind]
    records: dict[str, Any] = getattr(state, existing)
    if value is None:
        records.pop(key, None)
    else:
        records[key] = decoder.decode(value)
    if kind == "pool":
        state.apply_pool(key)
    elif kind == "project":
        state.apply_project(key)


def _follow_meta(state: State, kind: str, key: str, value: bytes | None) -> None:
    assert value is not None, f"the {kind} record is gone"
    state.meta = _META.decode(value)


def _follow_cache(state: State, _: str, key: str, value: bytes | None) -> None:
    project, _, name = key.partition("/")
    if value is not None or name in state.caches.get(project, {}):
        set_cache(state, project, name, _CACHE.decode(value) if value is not None else None)


def _follow_usage(state: State, _: str, key: str, value: bytes | None) -> None:
    project, _, day = key.rpartition("/")
    if value is not None or project in state.usage.get(int(day), {}):
        set_day(state, project, int(day), _USAGE.decode(value) if value is not None else None)


def _follow_opaque(state: State, kind: str, key: str, value: bytes | None) -> None:
    records = state.opaque_records.setdefault(kind, {})
    if value is None:
        records.pop(key, None)
        return
    records[key] = value
    if kind == "audit":
        state.audited = max(state.audited, _AUDIT.decode(value).number)


def _enter(state: State, instance: Instance) -> None:
    state.instances[instance.key] = instance
    count_result(state, instance, 1)
    count_instance_files(state, instance, 1)
    workload = state.spec_of(instance)
    progress = state.progress_of(workload)
    progress.placed_count = max(progress.placed_count, instance.index + 1)
    progress.counts[instance.state] = progress.counts.get(instance.state, 0) + 1
    if instance.state in ALLOCATED:
        state.allocate(workload, instance)


def _with_interned_strings(instance: Instance) -> Instance:
    """Decoding makes new strings for the same few words; shared, an instance takes half the memory."""
    instance.workload, instance.node = intern(instance.workload), intern(instance.node)
    instance.reason = share(instance.reason) if instance.reason is not None else None
    lines = [replace(line, reason=share(line.reason), node=intern(line.node)) for line in instance.story]
    instance.story = tuple(lines)
    return instance


def _grace_ms(state: State, now: int, unclean: bool) -> int:
    """Also after a clean takeover: one before it may have been unclean. Clocks of servers may differ by a grace."""
    grace_ms, taken_ms = state.settings.grace_ms, state.meta.unclean_takeover_ms
    if unclean:
        state.meta.unclean_takeover_ms = now
        state.touch_meta()
    return grace_ms if unclean or (taken_ms and abs(now - taken_ms) < 2 * grace_ms) else 0


def _remember_lease(state: State, now: int) -> None:
    """Leases may have been longer before a restart, and agents out of touch still have them."""
    state.lease_ms = state.sent_lease_ms = state.wanted_lease_ms()
    if state.meta.lease_ms > state.lease_ms:
        state.at(now + state.meta.lease_ms, TimerKind.SHORTER, "")
    elif state.meta.lease_ms < state.lease_ms:
        state.meta.lease_ms = state.lease_ms
        state.touch_meta()


def _await_node(state: State, node: Node, now: int, grace_ms: int) -> None:
    lease = state.meta.lease_ms + state.settings.lease_margin_ms + grace_ms
    state.liveness[node.name] = NodeLiveness(now if node.status in ABSENT else now + lease)
    state.open_node(node)
    if node.flaky_until_ms:
        state.at(node.flaky_until_ms, TimerKind.FLAKY, node.name)
    if node.status in ABSENT:
        state.at(now + GONE_AFTER_MS, TimerKind.GONE, node.name)
        if state.allocated[node.name]:
            state.losing[node.name] = None
    else:
        state.awaited.add(node.name)
        state.watch_lease(node.name)
    if node.draining and node.drain_until_ms:
        state.at(node.drain_until_ms, TimerKind.DRAIN, node.name)


def _await_instance(state: State, instance: Instance) -> None:
    if instance.state in ALLOCATED:
        if instance.prefilled_behind:
            prefill(state, instance, replace(instance, token=instance.prefilled_behind))
        if instance.state == InstanceState.STOPPING and instance.preempted_by:
            state.pending_preemptions[instance.preempted_by] = instance.node
        if instance.ready_since_ms and instance.ready_since_ms > state.now_ms:  # the clock was set back
            instance.ready_since_ms = state.now_ms
            state.touch_instance(instance)
    elif instance.state == InstanceState.QUEUED:
        spec = state.spec_of(instance)
        longest = state.now_ms + (spec.policy.restart or DEFAULT_RESTART).pause_max_ms
        longest = max(longest, state.adoption_deadline_ms()) if spec.adopted else longest
        if instance.not_before_ms > longest:  # the clock was set back
            instance.not_before_ms = longest
            state.touch_instance(instance)
        if not instance.blocked_on_dependency:
            state.at(max(instance.not_before_ms, state.now_ms), TimerKind.READY, instance.key)
            is_released = not instance.attempt and depends_by_element(spec)
            if is_released and spec.policy.when_full == WhenFull.REJECT:
                state.rejectable.append(instance.key)


def _await_workload(state: State, workload: Workload) -> None:
    key = workload.key
    if workload.adopted:
        progress = state.progress_of(workload)
        progress.placed_count = max(progress.placed_count, workload.count)
        state.at(state.now_ms + state.settings.lease_ms + state.settings.lease_margin_ms, TimerKind.ADOPTED, key)
    state.note_owner(workload)
    join_gang(state, workload)
    if workload.rollout is not None and workload.rollout.progress_ms > state.now_ms:  # the clock was set back
        workload.rollout = replace(workload.rollout, progress_ms=state.now_ms)  # also if finished: it may be retried
        state.touch_workload(workload)
    if workload.finished_ms:
        state.at(workload.finished_ms + workload.policy.retention_ms, TimerKind.SWEEP, key)
        state.finished[key] = None
        state.finished_instances += sum(state.progress_of(workload).counts.values())
        if state.placed_count(workload) > workload.count:
            state.mark_dirty(key)  # surge replicas are still to be removed
        return
    state.note_group(workload)
    if workload.policy.kind == WorkloadKind.SERVICE:
        state.mark_dirty(key)
    if workload.cancelling is not None:
        state.cancelling[key] = None
    _await_others(state, workload)
    enqueue(state, workload)
    watch_queue(state, workload)


def _await_others(state: State, workload: Workload) -> None:
    """Index the pending conditions, to be checked in the first step, and set the timer of a schedule."""
    waits, workload.pending_conditions = workload.pending_conditions, ()
    state.set_pending_conditions(workload, waits)
    for condition in waits:
        state.at(state.now_ms, TimerKind.AFTER, condition.workload)
    if workload.policy.schedule and not workload.unstarted_end_state:
        watch_schedule(state, workload)


_INSTANCE = Decoder(Instance)
_WORKLOAD = Decoder(Workload)
_NODE = Decoder(Node)
_CACHE = Decoder(CacheEntry)
_USAGE = Decoder(DayUsage)
_META = Decoder(Meta)
_FORMAT = Decoder(StoredFormat)
_AUDIT = Decoder(Audit)
_SETTINGS: dict[str, tuple[str, Decoder[Any]]] = {
    "project": ("projects", Decoder(Project)),
    "pool": ("pools", Decoder(Pool)),
    "reservation": ("reservations", Decoder(Reservation)),
    "need": ("needs", Decoder(TypicalNeed)),
}
_RECORDS = {
    "workload": _follow_workload,
    "version": _follow_version,
    "node": _follow_node,
    "meta": _follow_meta,
    "cache": _follow_cache,
    "usage": _follow_usage,
    **dict.fromkeys(OPAQUE_KINDS, _follow_opaque),
}
