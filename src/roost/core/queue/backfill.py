"""Places kept for somebody: by a reservation, or for the head of a line that has waited long enough.

A head that has lost patience gets the node where it can start soonest. Others may pass it there only if they are sure
to be gone by then, or take no more than it leaves over: that is EASY backfill, node by node. Nothing here is stored.
"""

import numpy as np

from roost.core.placement.filters.location import open_to
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.scorers import SCORE_MAX
from roost.core.placement.select import without_affinity
from roost.core.queue.easy import reserve
from roost.core.queue.fair_share import is_entitled
from roost.core.state.fleet import Mask
from roost.core.state.queue import (
    FOREVER,
    BackfillReservation,
    EquivalenceClass,
    GangReservation,
    Order,
    PendingHead,
    rank_of,
)
from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.records.workload import Ask, Workload
from roost.model.states import InstanceState, WorkloadKind

BACKFILL_RESERVATIONS_MAX = 16  # at a time: each keeps a node from others, and is checked for every placement
ROWS_MAX = 32  # nodes whose running work is looked at for a new head: those with the most room, 2 us an instance
STARTS_APART_MS = 10_000  # starts that are closer are the same to others until something else changes
GUESS_MIN_MS = 1_000  # a run of unknown length is taken to last as long again as it has, but at least this
GANGS_MAX = 2  # for which nodes are kept at a time: each may keep much of a fleet from others


def order_of(workload: Workload) -> Order:
    """Who comes before whom, whatever their projects' shares are at the moment."""
    return -workload.policy.priority, *rank_of(workload)


def unreserved_mask(state: State, line: EquivalenceClass, workload: Workload, now: int) -> Mask | None:
    """Nodes that are not kept for somebody else, as far as this workload goes; None: nothing is kept."""
    own = open_to(state.fleet, line.project)
    if not state.backfill_reservations and not state.reservations and not state.gang_reservations:
        return own
    fleet, policy, order = state.fleet, workload.policy, order_of(workload)
    ends_ms = now + policy.timeout_ms if policy.timeout_ms else FOREVER
    allowed = np.ones(len(fleet), np.bool_) if own is None else own.copy()
    for reservation in state.reservations.values():
        over = reservation.end_ms and reservation.end_ms <= now
        if reservation.project != line.project and not over and ends_ms > reservation.start_ms:
            for name in reservation.nodes:
                if (row := fleet.row(name)) >= 0:
                    allowed[row] = False
    borrows = not is_entitled(state, workload.project, policy.ask)
    for gang, gang_reservation in state.gang_reservations.items():
        if gang is not line and (gang_reservation.order < order or borrows) and ends_ms > gang_reservation.shadow_ms:
            allowed[[row for name in gang_reservation.nodes if (row := fleet.row(name)) >= 0]] = False
    for other, reserved in state.backfill_reservations.items():
        minds = other is not line and (reserved.order <= order or (reserved.by_preemption and borrows))
        if minds and not _can_backfill(reserved, policy.ask, ends_ms) and (row := fleet.row(reserved.node)) >= 0:
            allowed[row] = False
    return None if allowed.all() else allowed


def consume_extra(state: State, line: EquivalenceClass, node: str, ask: Ask, timeout_ms: int, now: int) -> None:
    """Somebody was placed: who outlasts a reserved start uses up what is left over there."""
    ends_ms = now + timeout_ms if timeout_ms else FOREVER
    for other, reserved in state.backfill_reservations.items():
        if other is not line and reserved.node == node and ends_ms > reserved.shadow_ms:
            extra = dict(reserved.extra)
            for resource, amount in ask.resources:
                extra[resource] = extra.get(resource, 0) - amount
            state.backfill_reservations[other] = reserved._replace(extra=extra)


def wants_reservation(state: State, line: EquivalenceClass, head: PendingHead, now: int) -> bool:
    """Whether a place is to be kept for a head that did not fit: room is being made for it, or it waits too long."""
    if head.key in state.pending_preemptions or line in state.backfill_reservations:
        return True
    return len(state.backfill_reservations) < BACKFILL_RESERVATIONS_MAX and _is_starving(state, line, head, now)


def drop_stale(state: State) -> None:
    """Whoever does not wait any more needs no place."""
    for line, reserved in list(state.backfill_reservations.items()):
        head = state.head_of(line) if state.queue.classes.get(line.key) is line else None
        if head is None or reserved.instance != head.key:
            release(state, line)
    for key, node in list(state.pending_preemptions.items()):
        going = state.allocated.get(node, {}).values()
        if not _waits(state, key) or not any(
            instance.state == InstanceState.STOPPING and instance.preempted_by == key for instance in going
        ):
            del state.pending_preemptions[key]


def _waits(state: State, key: str) -> bool:
    workload_key, _, index = key.rpartition(".")
    workload, instance = state.workloads.get(workload_key), state.instances.get(key)
    if workload is None:
        return False
    return instance.state == InstanceState.QUEUED if instance is not None else state.has_unstarted(workload)


def reserve_node(state: State, line: EquivalenceClass, head: PendingHead, fits: Mask, now: int) -> None:
    """Keep a place for a head that did not fit: where room is being made for it, or where it can start soonest."""
    key = head.key
    made = state.pending_preemptions.get(key)
    others = {other: reserved for other, reserved in state.backfill_reservations.items() if other is not line}
    # Where others are being stopped for it, who comes after it and only waits there has to look for another place:
    # otherwise those who were stopped would take the room again, and be stopped again, for ever.
    after = order_of(head.workload)
    yielding = [other for other, reserved in others.items() if reserved.node == made and reserved.order > after]
    taken = {reserved.node for other, reserved in others.items() if other not in yielding}
    best: BackfillReservation | None = None
    existing = state.backfill_reservations.get(line)
    names = [made] if made is not None else [] if existing is None else [existing.node]
    if not names or state.fleet.row(names[0]) < 0 or not fits[state.fleet.row(names[0])]:
        names = _nodes(state, line.ask, fits)
    for name in names:
        if name in taken or state.fleet.row(name) < 0:
            continue
        reserved = _start_on(state, name, key, head.workload, now)
        if reserved is not None and (best is None or reserved.shadow_ms < best.shadow_ms):
            best = reserved
    if best is None:
        release(state, line)
        return
    if best.node == made:
        for other in yielding:
            release(state, other)
    best = best._replace(by_preemption=made is not None)
    if existing is None or _visible_part(existing) != _visible_part(best):
        state.backfill_reservations[line] = best
        state.fleet.touch(best.node)
        if existing is not None:
            state.fleet.touch(existing.node)


def reserved_earlier(state: State, line: EquivalenceClass, workload: Workload) -> set[str]:
    """Nodes on which an earlier line waits for room: this workload may backfill there, but cannot reserve them.

    Where room is being made for the earlier line, it starts as soon as that is done, and its reservation ends.
    """
    order, others = order_of(workload), state.backfill_reservations.items()
    return {
        reserved.node
        for other, reserved in others
        if other is not line and reserved.order <= order and not reserved.by_preemption
    }


def release(state: State, line: EquivalenceClass) -> None:
    """The head has its place, or does not want it any more: whoever was kept from it is looked at again."""
    reserved = state.backfill_reservations.pop(line, None)
    if reserved is not None:
        state.fleet.touch(reserved.node)


def end_ms(state: State, instance: Instance, now: int) -> int:
    """When an instance ends, as far as one can say: by its expected length, else its timeout, else as long again."""
    policy = state.spec_of(instance).policy
    if instance.state == InstanceState.STOPPING:
        return now + policy.grace_ms
    if policy.kind != WorkloadKind.JOB:
        return FOREVER
    began = instance.started_ms or instance.since_ms
    length = policy.expected_ms or policy.timeout_ms
    if not length:
        return now + max(now - began, GUESS_MIN_MS)
    return max(now, began + length)


def _visible_part(reservation: BackfillReservation) -> tuple[str, str, bool, int, dict[str, int]]:
    """What others see of a hold: a start that is only guessed moves all the time, and nobody need look for a second."""
    return (
        reservation.node,
        reservation.instance,
        reservation.by_preemption,
        reservation.shadow_ms // STARTS_APART_MS,
        reservation.extra,
    )


def _can_backfill(reservation: BackfillReservation, ask: Ask, ends_ms: int) -> bool:
    if ends_ms <= reservation.shadow_ms:
        return True
    return not ask.gpu_count and all(reservation.extra.get(resource, 0) >= amount for resource, amount in ask.resources)


def _is_starving(state: State, line: EquivalenceClass, head: PendingHead, now: int) -> bool:
    since = max(head.workload.submitted_ms, head.workload.released_ms)
    if head.is_requeued:
        since = state.instances[head.key].since_ms
    until = since + state.settings.backfill_after_ms
    if until > now:
        state.check_queue_at(until)
    return until <= now


def _nodes(state: State, ask: Ask, fits: Mask) -> list[str]:
    """The nodes that could take it; of many, those with the most room."""
    fleet = state.fleet
    rows = np.flatnonzero(fits & fleet.open)
    if len(rows) > ROWS_MAX:
        room = np.full(len(rows), SCORE_MAX)
        for resource, amount in ask.resources:
            room = np.minimum(room, np.maximum(fleet.free(resource)[rows], 0) * SCORE_MAX // amount)
        rows = np.sort(rows[np.argsort(-room, kind="stable")[:ROWS_MAX]])
    return [fleet.names[row] for row in rows.tolist()]


def _start_on(state: State, name: str, key: str, workload: Workload, now: int) -> BackfillReservation | None:
    """When an instance fits on one node if what runs there ends as it says."""
    fleet, row, ask = state.fleet, state.fleet.row(name), workload.policy.ask
    ends = sorted(
        [
            (end, token, instance)
            for token, instance in state.allocated[name].items()
            if not instance.prefilled_behind and (end := end_ms(state, instance, now)) != FOREVER
        ]
    )
    extra = {resource: total.item(row) - fleet.used[resource].item(row) for resource, total in fleet.total.items()}
    back = [(end, dict(state.spec_of(instance).policy.ask.resources)) for end, _, instance in ends]
    start = now
    for resource, amount in ask.resources:
        found = reserve(amount, extra.get(resource, 0), [(end, freed.get(resource, 0)) for end, freed in back], now)
        if found is None:
            return None
        start = max(start, found.shadow)
        extra[resource] -= amount
    if ask.gpu_count:
        devices = _devices_free(
            state, fleet.devices[row].tolist(), ask, [(end, instance) for end, _, instance in ends], now
        )
        if devices is None:
            return None
        start = max(start, devices)
    for end, freed in back:
        if end <= start:
            for resource, amount in freed.items():
                extra[resource] += amount
    return BackfillReservation(name, key, start, extra, order_of(workload))


def _devices_free(state: State, free: list[int], ask: Ask, ends: list[tuple[int, Instance]], now: int) -> int | None:
    """When the devices allow it."""
    if sum(left >= ask.gpu_milli for left in free) >= ask.gpu_count:
        return now
    for end, instance in ends:
        for device in instance.devices:
            free[device] += state.spec_of(instance).policy.ask.gpu_milli
        if sum(left >= ask.gpu_milli for left in free) >= ask.gpu_count:
            return end
    return None


class _EmptiedNode:
    """What a node has once all that ends has ended."""

    def __init__(self, state: State, name: str, now: int) -> None:
        row = state.fleet.row(name)
        self.name = name
        self.free = {resource: total.item(row) for resource, total in state.fleet.total.items()}
        self.empty_ms = now
        for instance in state.allocated[name].values():
            if instance.prefilled_behind:
                continue
            end = end_ms(state, instance, now)
            if end != FOREVER:
                self.empty_ms = max(self.empty_ms, end)
                continue
            for resource, amount in state.spec_of(instance).policy.ask.resources:
                self.free[resource] -= amount

    def take(self, ask: Ask) -> bool:
        """Whether an ask goes in there, too."""
        if any(self.free.get(resource, 0) < amount for resource, amount in ask.resources):
            return False
        for resource, amount in ask.resources:
            self.free[resource] -= amount
        return True


def reserve_for_gang(state: State, line: EquivalenceClass, waiting: list[PendingHead], now: int) -> None:
    """Keep nodes for a gang that does not fit, if it has waited long enough and all of it would fit on empty nodes."""
    gang_reservation = state.gang_reservations.get(line)
    if not waiting or (gang_reservation is not None and _is_still_valid(state, gang_reservation)):
        return
    since = min(max(head.workload.submitted_ms, head.workload.released_ms) for head in waiting)
    until = since + state.settings.backfill_after_ms
    if until > now:
        state.check_queue_at(until)
        return
    release_gang(state, line)
    if len(state.gang_reservations) >= GANGS_MAX:
        return
    chosen = _enough(state, waiting, now)
    if chosen:
        start_ms = max(room.empty_ms for room in chosen)
        order = min(order_of(head.workload) for head in waiting)
        nodes = tuple(sorted(room.name for room in chosen))
        state.gang_reservations[line] = GangReservation(nodes, line.isolated, start_ms, order)


def release_gang(state: State, line: EquivalenceClass) -> None:
    """The gang has its place, or is not there any more."""
    gang_reservation = state.gang_reservations.pop(line, None)
    for node in gang_reservation.nodes if gang_reservation is not None else ():
        state.fleet.touch(node)


def drop_stale_gangs(state: State) -> None:
    """A gang that does not wait any more needs no nodes."""
    for line in list(state.gang_reservations):
        if state.queue.classes.get(line.key) is not line or state.head_of(line) is None:
            release_gang(state, line)


def _is_still_valid(state: State, reservation: GangReservation) -> bool:
    fleet = state.fleet
    return all((row := fleet.row(name)) >= 0 and fleet.open[row] for name in reservation.nodes)


def _enough(state: State, waiting: list[PendingHead], now: int) -> list[_EmptiedNode]:
    """The nodes that are empty soonest and hold all of a gang; none if all nodes together would not."""
    fleet = state.fleet
    stored = {name for gang_reservation in state.gang_reservations.values() for name in gang_reservation.nodes}
    closed = sorted(
        (
            _EmptiedNode(state, name, now)
            for row, name in enumerate(fleet.names)
            if fleet.open[row] and name not in stored
        ),
        key=lambda room: (room.empty_ms, room.name),
    )
    fits = {
        ask: fits_when_empty(fleet, without_affinity(ask))
        for ask in {head.workload.policy.ask: None for head in waiting}
    }
    own = open_to(fleet, waiting[0].workload.project)
    if own is not None:
        closed = [room for room in closed if own[fleet.row(room.name)]]
    chosen: list[_EmptiedNode] = []
    for head in waiting:
        ask = head.workload.policy.ask
        for room in (*chosen, *closed):
            if fits[ask][fleet.row(room.name)] and room.take(ask):
                break
        else:
            return []
        if room in closed:
            closed.remove(room)
            chosen.append(room)
    return chosen
