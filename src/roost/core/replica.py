"""The state from what is stored: followed change by change, and taken over when it is time to decide.

There is one way for a server that starts, one that recovers and a standby: `mirror` what is stored, `follow` what is
committed, `take_over`. The mirror has the records and what can be counted from them; queue, timers and leases are made
by the take-over, because they are only of use to who decides, and depend on when it begins.
"""

from collections.abc import Iterable
from sys import intern
from typing import Any

import msgspec

from roost.core.placement.gpu.fragmentation import expect
from roost.core.state.liveness import NodeLiveness
from roost.core.state.records import SERIALS_PER_MS, Meta, Settings
from roost.core.state.state import GONE_AFTER_MS, State
from roost.core.state.timers import TimerKind
from roost.core.state.versions import shrink
from roost.core.transitions import prefill
from roost.core.watch import join_schedule, watch_pool, watch_queue, watch_reservation, watch_schedule
from roost.model.reasons.reason import share
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.opaque import OPAQUE_KINDS, Audit
from roost.model.records.project import Pool, Project, Reservation
from roost.model.records.transition import Transition
from roost.model.records.workload import DEFAULT_RESTART, Workload
from roost.model.states import ALLOCATED, InstanceState, NodeStatus, WhenFull, WorkloadKind
from roost.ports.store import Change, Damaged, Snapshot, StoreError


def load(snapshot: Snapshot, now: int, settings: Settings | None = None, *, unclean: bool = False) -> State:
    """The state from what is stored, ready to decide."""
    state = mirror(snapshot, settings)
    take_over(state, now, unclean=unclean)
    return state


def mirror(snapshot: Snapshot, settings: Settings | None = None) -> State:
    """The records of a snapshot: good for reading and following, not for deciding."""
    state = State(settings)
    follow(state, snapshot.revision, snapshot.records)
    in_order = sorted(state.workloads.values(), key=lambda workload: workload.serial)
    state.workloads = {workload.key: workload for workload in in_order}
    return state


def follow(state: State, revision: int, changes: Iterable[Change]) -> None:
    """Let a mirror show what was committed since. An instance needs its workload and its node: it leaves before them
    and comes after them."""
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
            _leave(state, old)
    for kind, key, value in others:
        _RECORDS.get(kind, _follow_setting)(state, kind, key, value)
    for key, value in instances.items():
        if value is None:
            _shrink(state, key.rpartition(".")[0])
    for value in instances.values():
        if value is not None:
            _enter(state, _with_interned_strings(_INSTANCE.decode(value)))
    state.revision = revision


def take_over(state: State, now: int, *, unclean: bool = False) -> None:
    """Begin to decide. Every node gets a whole lease to come back before it can be called lost. `unclean`: the leader
    before has not let go and may still be answering agents, which then have some grace."""
    state.now_ms = state.active_since_ms = now
    grace_ms = _grace_ms(state, now, unclean)
    if not state.meta.first_serial:
        state.meta.first_serial = state.meta.reserved = now * SERIALS_PER_MS
    state.serial = state.meta.reserved
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


# following


def _follow_workload(state: State, _: str, key: str, value: bytes | None) -> None:
    workload = _WORKLOAD.decode(value) if value is not None else None
    existing = state.workloads.get(key)
    if existing is not None and (workload is None or workload.serial != existing.serial):
        del state.workloads[key]  # another one of that name comes last
        state.progress.pop(key, None)
    if workload is not None:
        workload.policy = state.intern_policy(workload.policy)
        state.workloads[key] = workload


def _follow_version(state: State, _: str, key: str, value: bytes | None) -> None:
    if value is None:
        state.versions.pop(key, None)
        return
    state.versions[key] = spec = _WORKLOAD.decode(value)
    spec.policy = state.intern_policy(spec.policy)


def _follow_node(state: State, _: str, key: str, value: bytes | None) -> None:
    if value is None:
        if state.nodes.pop(key, None) is not None:
            assert not state.allocated.pop(key), f"{key} is gone and holds something"
            del state.liveness[key]
            state.fleet.leave(key)
        return
    node = state.nodes[key] = _NODE.decode(value)
    state.allocated.setdefault(key, {})
    in_touch = node.status not in (NodeStatus.SUSPECT, NodeStatus.LOST)
    state.liveness.setdefault(key, NodeLiveness(0)).connected = in_touch  # with whoever leads
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


def _follow_meta(state: State, kind: str, key: str, value: bytes | None) -> None:
    assert value is not None, f"the {kind} record is gone"
    state.meta = _META.decode(value)


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
    workload = state.spec_of(instance)
    progress = state.progress_of(workload)
    progress.placed_count = max(progress.placed_count, instance.index + 1)
    progress.counts[instance.state] = progress.counts.get(instance.state, 0) + 1
    if instance.state in ALLOCATED:
        state.allocate(workload, instance)


def _leave(state: State, instance: Instance) -> None:
    state.progress[instance.workload].counts[instance.state] -= 1
    if instance.state in ALLOCATED:
        state.release(state.spec_of(instance), instance)


def _shrink(state: State, key: str) -> None:
    """One is gone for good: of a workload that lives, it was beyond the count."""
    if key in state.workloads and key in state.progress:
        shrink(state, state.workloads[key])


def _with_interned_strings(instance: Instance) -> Instance:
    """Decoding makes new strings for the same few words; shared, an instance takes half the memory."""
    instance.workload, instance.node = intern(instance.workload), intern(instance.node)
    instance.reason = share(instance.reason) if instance.reason is not None else None
    instance.story = tuple(
        [
            Transition(
                line.at_ms, intern(line.before), intern(line.state), share(line.reason), line.revision,
                line.attempt, intern(line.node), line.exit_code, line.signal, line.version, line.log_size,
            )
            for line in instance.story
        ]
    )  # fmt: skip
    return instance


# taking over


def _grace_ms(state: State, now: int, unclean: bool) -> int:
    """Also when the last leader has let go: one before it may not have. Clocks of servers may differ by a grace."""
    grace_ms, taken_ms = state.settings.grace_ms, state.meta.unclean_takeover_ms
    if unclean:
        state.meta.unclean_takeover_ms = now
        state.touch_meta()
    return grace_ms if unclean or (taken_ms and abs(now - taken_ms) < 2 * grace_ms) else 0


def _remember_lease(state: State, now: int) -> None:
    """Leases may have been longer before a restart, and an agent that is out of touch counts on what it was given."""
    if state.meta.lease_ms > state.settings.lease_ms:
        state.at(now + state.meta.lease_ms, TimerKind.SHORTER, "")
    elif state.meta.lease_ms < state.settings.lease_ms:
        state.meta.lease_ms = state.settings.lease_ms
        state.touch_meta()


def _await_node(state: State, node: Node, now: int, grace_ms: int) -> None:
    """Nobody is in touch yet."""
    lease = state.meta.lease_ms + state.settings.lease_margin_ms + grace_ms
    state.liveness[node.name] = NodeLiveness(now if node.status == NodeStatus.LOST else now + lease)
    state.open_node(node)
    if node.flaky_until_ms:
        state.at(node.flaky_until_ms, TimerKind.FLAKY, node.name)
    if node.status == NodeStatus.LOST:
        state.at(now + GONE_AFTER_MS, TimerKind.GONE, node.name)
    else:
        state.watch_lease(node.name)
    if node.draining and node.drain_until_ms:
        state.at(node.drain_until_ms, TimerKind.DRAIN, node.name)


def _await_instance(state: State, instance: Instance) -> None:
    if instance.state in ALLOCATED:
        if instance.prefilled_behind:
            prefill(state, instance, msgspec.structs.replace(instance, token=instance.prefilled_behind))
        if instance.state == InstanceState.STOPPING and instance.preempted_by:
            state.pending_preemptions[instance.preempted_by] = instance.node
        if instance.ready_since_ms and instance.ready_since_ms > state.now_ms:  # the clock was set back
            instance.ready_since_ms = state.now_ms
            state.touch_instance(instance)
    elif instance.state == InstanceState.QUEUED:
        spec = state.spec_of(instance)
        longest = state.now_ms + (spec.policy.restart or DEFAULT_RESTART).pause_max_ms
        longest = max(longest, state.adoption_deadline_ms()) if spec.adopted else longest
        if instance.not_before_ms > longest:  # the clock was set back: nobody waits for that
            instance.not_before_ms = longest
            state.touch_instance(instance)
        if not instance.blocked_on_dependency:
            state.at(max(instance.not_before_ms, state.now_ms), TimerKind.READY, instance.key)
            policy = state.spec_of(instance).policy
            if (
                policy.when_full == WhenFull.REJECT
                and not instance.attempt
                and any(condition.each for condition in policy.after)
            ):
                state.rejectable.append(instance.key)


def _await_workload(state: State, workload: Workload) -> None:
    key = workload.key
    if workload.adopted:
        progress = state.progress_of(workload)
        progress.placed_count = max(progress.placed_count, workload.count)
        state.at(state.now_ms + state.settings.lease_ms + state.settings.lease_margin_ms, TimerKind.ADOPTED, key)
    if workload.policy.gang:
        state.gangs.setdefault(workload.policy.gang, {})[key] = None
    if workload.parent:
        join_schedule(state, workload)
    if workload.policy.schedule:
        state.schedules[key] = None
    if workload.finished_ms:
        state.at(workload.finished_ms + workload.policy.retention_ms, TimerKind.SWEEP, key)
        state.finished[key] = None
        state.finished_instances += sum(state.progress_of(workload).counts.values())
        if state.placed_count(workload) > workload.count:
            state.mark_dirty(key)  # who stood in is still to be forgotten
        return
    if workload.policy.kind == WorkloadKind.SERVICE:
        state.mark_dirty(key)
        if workload.rollout is not None and workload.rollout.progress_ms > state.now_ms:
            workload.rollout = msgspec.structs.replace(workload.rollout, progress_ms=state.now_ms)
            state.touch_workload(workload)
    _await_others(state, workload)
    if state.has_unstarted(workload):
        state.queue.add_unstarted(workload)
        if workload.policy.when_full == WhenFull.REJECT:
            state.rejectable.append(key)
    watch_queue(state, workload)


def _await_others(state: State, workload: Workload) -> None:
    """Note whom it waits for; whether they have come meanwhile is looked at in the first step. Schedules are timed."""
    waits, workload.pending_conditions = workload.pending_conditions, ()
    state.set_pending_conditions(workload, waits)
    for condition in waits:
        state.at(state.now_ms, TimerKind.AFTER, condition.workload)
    if workload.policy.schedule and not workload.unstarted_end_state:
        watch_schedule(state, workload)


_INSTANCE = msgspec.msgpack.Decoder(Instance)
_WORKLOAD = msgspec.msgpack.Decoder(Workload)
_NODE = msgspec.msgpack.Decoder(Node)
_META = msgspec.msgpack.Decoder(Meta)
_AUDIT = msgspec.msgpack.Decoder(Audit)
_SETTINGS: dict[str, tuple[str, msgspec.msgpack.Decoder[Any]]] = {
    "project": ("projects", msgspec.msgpack.Decoder(Project)),
    "pool": ("pools", msgspec.msgpack.Decoder(Pool)),
    "reservation": ("reservations", msgspec.msgpack.Decoder(Reservation)),
}
_RECORDS = {
    "workload": _follow_workload,
    "version": _follow_version,
    "node": _follow_node,
    "meta": _follow_meta,
    **dict.fromkeys(OPAQUE_KINDS, _follow_opaque),
}
