"""Reserved nodes: by an operator's reservation, or for the head of a class that has been pending for long.

Such a head gets the node where it can start soonest. Others may start there only if they end before its shadow time,
or take no more than it leaves over: EASY backfill, node by node. Nothing here is stored.
"""

import numpy as np

from roost.core.placement.filters.location import open_to
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.scorers import SCORE_MAX
from roost.core.placement.select import without_affinity
from roost.core.queue.easy import reserve
from roost.core.queue.eviction import STOPS_SOON_MS, emptied_soon, stopped_ms
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
from roost.core.watch import waiting_since_ms
from roost.model.records.instance import Instance
from roost.model.records.workload import Ask, Workload
from roost.model.states import InstanceState, WorkloadKind

BACKFILL_RESERVATIONS_MAX = 16  # at a time: each keeps a node from others, and is checked for every placement
ROWS_MAX = 32  # nodes whose running work is looked at for a new head: those with the most room, 2 us an instance
STARTS_APART_MS = 10_000  # starts that are closer are the same to others until something else changes
GUESS_MIN_MS = 1_000  # a run of unknown length is assumed to last as long again as it has, but at least this
GANGS_MAX = 2  # gangs with a reservation at a time: each may keep much of a fleet from others


def order_of(workload: Workload) -> Order:
    """The order of workloads, whatever the shares of their projects are at the moment."""
    return -workload.policy.priority, *rank_of(workload)


def unreserved_mask(state: State, line: EquivalenceClass, workload: Workload, now: int) -> Mask | None:
    """Nodes that are not reserved for others, as far as this workload goes; None: all."""
    own = open_to(state.fleet, line.project, workload.policy.ask)
    if not state.backfill_reservations and not state.reservations and not state.gang_reservations:
        return own
    fleet, policy, order = state.fleet, workload.policy, order_of(workload)
    ends_ms = now + policy.timeout_ms if policy.timeout_ms else FOREVER
    allowed = np.ones(len(fleet), np.bool_) if own is None else own.copy()
    for reservation in state.reservations.values():
        over = reservation.end_ms and reservation.end_ms <= now
        if reservation.project != line.project and not over and ends_ms > reservation.start_ms:
            allowed[_rows(state, reservation.nodes)] = False
    borrows = not is_entitled(state, workload.project, policy.ask)
    for gang, gang_reservation in state.gang_reservations.items():
        if gang is not line and (gang_reservation.order < order or borrows) and ends_ms > gang_reservation.shadow_ms:
            allowed[_rows(state, gang_reservation.nodes)] = False
    for other, reserved in state.backfill_reservations.items():
        minds = other is not line and (reserved.order <= order or (reserved.awaits_stops and borrows))
        if minds and not _can_backfill(reserved, policy.ask, ends_ms):
            allowed[_rows(state, (reserved.node,))] = False
    return None if allowed.all() else allowed


def _rows(state: State, nodes: tuple[str, ...]) -> list[int]:
    return [row for name in nodes if (row := state.fleet.row(name)) >= 0]


def _can_backfill(reservation: BackfillReservation, ask: Ask, ends_ms: int) -> bool:
    """Stopping instances may end before their grace has passed, and then the head would preempt a short job as well:
    a reservation that awaits stops leaves only what is left over."""
    if ends_ms <= reservation.shadow_ms and not reservation.awaits_stops:
        return True
    return not ask.gpu_count and all(reservation.extra.get(resource, 0) >= amount for resource, amount in ask.resources)


def consume_extra(state: State, line: EquivalenceClass, node: str, ask: Ask, timeout_ms: int, now: int) -> None:
    """A placed instance that may be there at the start of a head uses up what is left over there."""
    ends_ms = now + timeout_ms if timeout_ms else FOREVER
    for other, reserved in state.backfill_reservations.items():
        if other is not line and reserved.node == node and (reserved.awaits_stops or ends_ms > reserved.shadow_ms):
            extra = dict(reserved.extra)
            for resource, amount in ask.resources:
                extra[resource] = extra.get(resource, 0) - amount
            state.backfill_reservations[other] = reserved._replace(extra=extra)


def wants_reservation(state: State, line: EquivalenceClass, head: PendingHead, now: int) -> bool:
    """Whether a head that did not fit gets a reservation: after a preemption, or if it is pending for too long."""
    if head.key in state.pending_preemptions or line in state.backfill_reservations:
        return True
    since = state.instances[head.key].since_ms if head.is_requeued else waiting_since_ms(head.workload)
    line.overdue_ms = since + state.settings.backfill_after_ms
    return len(state.backfill_reservations) < BACKFILL_RESERVATIONS_MAX and _is_overdue(state, since, now)


def _is_overdue(state: State, since_ms: int, now: int) -> bool:
    """Whether it is time for a reservation; if not, the queue is checked again when it is."""
    until = since_ms + state.settings.backfill_after_ms
    if until > now:
        state.check_queue_at(until)
    return until <= now


def drop_stale(state: State) -> None:
    """Drop reservations and preemptions for instances and gangs that are no longer pending."""
    for line, reserved in list(state.backfill_reservations.items()):
        head = _pending_head(state, line)
        if head is None or reserved.instance != head.key:
            release(state, line)
    for line in list(state.gang_reservations):
        if _pending_head(state, line) is None:
            release(state, line)
    for key, node in list(state.pending_preemptions.items()):
        going = state.allocated.get(node, {}).values()
        if not _is_pending(state, key) or not any(
            instance.state == InstanceState.STOPPING
            and instance.preempted_by == key
            and stopped_ms(state, instance) != FOREVER
            for instance in going
        ):
            del state.pending_preemptions[key]


def _pending_head(state: State, line: EquivalenceClass) -> PendingHead | None:
    return state.head_of(line) if state.queue.classes.get(line.key) is line else None


def _is_pending(state: State, key: str) -> bool:
    workload_key, _, index = key.rpartition(".")
    workload, instance = state.workloads.get(workload_key), state.instances.get(key)
    if workload is None:
        return False
    return instance.state == InstanceState.QUEUED if instance is not None else state.has_unstarted(workload)


def reserve_node(state: State, line: EquivalenceClass, head: PendingHead, fits: Mask, now: int) -> None:
    """Reserve a node for a head that did not fit: where it preempts others, or where it can start soonest."""
    key = head.key
    made = state.pending_preemptions.get(key)
    others = {other: reserved for other, reserved in state.backfill_reservations.items() if other is not line}
    # Where instances are being stopped for it, later reservations move elsewhere. Otherwise the stopped ones would
    # be placed there again, and stopped again, without end.
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
        reserved = _start_on(state, name, key, head.workload, now, is_made=name == made)
        if reserved is not None and (best is None or reserved.shadow_ms < best.shadow_ms):
            best = reserved
    if best is None:
        release(state, line)
        return
    if best.awaits_stops:
        state.check_queue_at(best.shadow_ms + STOPS_SOON_MS + 1)  # what still runs then may never end
    if best.node == made:
        for other in yielding:
            release(state, other)
    if existing is None or _visible_part(existing) != _visible_part(best):
        state.backfill_reservations[line] = best
        state.fleet.touch(best.node)
        if existing is not None:
            state.fleet.touch(existing.node)


def reserved_earlier(state: State, line: EquivalenceClass, workload: Workload) -> set[str]:
    """Nodes reserved for an earlier class: this workload may backfill there, but cannot reserve them.

    A reservation that awaits stops leaves over resources, and no ports: who needs a port may stop the one that has it.
    """
    order, others = order_of(workload), state.backfill_reservations.items()
    return {
        reserved.node
        for other, reserved in others
        if other is not line and reserved.order <= order and not (reserved.awaits_stops and workload.policy.ask.ports)
    }


def release(state: State, line: EquivalenceClass) -> None:
    reserved = state.backfill_reservations.pop(line, None)
    if reserved is not None:
        state.fleet.touch(reserved.node)
    gang_reservation = state.gang_reservations.pop(line, None)
    if gang_reservation is not None:
        for node in gang_reservation.nodes:
            state.fleet.touch(node)


def end_ms(state: State, instance: Instance, now: int) -> int:
    """When an instance will end: by its expected length, else its timeout, else after as long again."""
    policy = state.spec_of(instance).policy
    if instance.state == InstanceState.STOPPING:
        return max(now, stopped_ms(state, instance))
    if policy.kind != WorkloadKind.JOB:
        return FOREVER
    began = instance.started_ms or instance.since_ms
    length = policy.expected_ms or policy.timeout_ms
    if not length:
        return now + max(now - began, GUESS_MIN_MS)
    return max(now, began + length)


def _visible_part(reservation: BackfillReservation) -> tuple[str, str, bool, int, dict[str, int]]:
    """What others see of a reservation: a guessed start moves all the time, and a second makes no difference."""
    return (
        reservation.node,
        reservation.instance,
        reservation.awaits_stops,
        reservation.shadow_ms // STARTS_APART_MS,
        reservation.extra,
    )


def _nodes(state: State, ask: Ask, fits: Mask) -> list[str]:
    fleet = state.fleet
    rows = np.flatnonzero(fits & fleet.open)
    if len(rows) > ROWS_MAX:
        room = np.full(len(rows), SCORE_MAX)
        for resource, amount in ask.resources:
            room = np.minimum(room, np.maximum(fleet.free(resource)[rows], 0) * SCORE_MAX // amount)
        rows = np.sort(rows[np.argsort(-room, kind="stable")[:ROWS_MAX]])
    return [fleet.names[row] for row in rows.tolist()]


def _start_on(
    state: State, name: str, key: str, workload: Workload, now: int, *, is_made: bool
) -> BackfillReservation | None:
    """When an instance fits on one node if what runs there ends in time."""
    fleet, row, ask = state.fleet, state.fleet.row(name), workload.policy.ask
    ends = sorted(
        (end, token, instance)
        for token, instance in state.allocated[name].items()
        if not instance.prefilled_behind and (end := end_ms(state, instance, now)) != FOREVER
    )
    extra = {resource: fleet.free_one(resource, row) for resource in fleet.total}
    back = [(end, dict(state.spec_of(instance).policy.ask.resources)) for end, _, instance in ends]
    start = now
    for resource, amount in ask.resources:
        found = reserve(amount, extra.get(resource, 0), [(end, freed.get(resource, 0)) for end, freed in back], now)
        if found is None:
            return None
        start = max(start, found.shadow)
        extra[resource] -= amount
    if ask.gpu_count:
        devices_ms = _devices_free_ms(state, row, ask, [(end, instance) for end, _, instance in ends], now)
        if devices_ms is None:
            return None
        start = max(start, devices_ms)
    # If a head only has to wait for stops, it would preempt at once what is placed in that room meanwhile.
    awaits_stops = is_made or emptied_soon(state, ask, [name]) is not None
    for (end, freed), (_, _, instance) in zip(back, ends, strict=True):
        # The start after stops may be sooner: then what still runs has given nothing back.
        if end <= start and (instance.state == InstanceState.STOPPING or not awaits_stops):
            for resource, amount in freed.items():
                extra[resource] += amount
    return BackfillReservation(name, key, start, extra, order_of(workload), awaits_stops)


def _devices_free_ms(state: State, row: int, ask: Ask, ends: list[tuple[int, Instance]], now: int) -> int | None:
    free = state.fleet.devices[row].tolist()
    if sum(left >= ask.gpu_milli for left in free) >= ask.gpu_count:
        return now
    for end, instance in ends:
        for device in instance.devices:
            free[device] += state.spec_of(instance).policy.ask.gpu_milli
        if sum(left >= ask.gpu_milli for left in free) >= ask.gpu_count:
            return end
    return None


class _EmptiedNode:
    """What a node has once all jobs on it have ended."""

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
        if any(self.free.get(resource, 0) < amount for resource, amount in ask.resources):
            return False
        for resource, amount in ask.resources:
            self.free[resource] -= amount
        return True


def reserve_for_gang(state: State, line: EquivalenceClass, waiting: list[PendingHead], now: int) -> None:
    """Reserve nodes for a gang that is pending for long, if all of it would fit on empty nodes."""
    existing = state.gang_reservations.get(line)
    if not waiting or (existing is not None and _are_open(state, existing.nodes)):
        return
    if not _is_overdue(state, min(waiting_since_ms(head.workload) for head in waiting), now):
        return
    release(state, line)
    if len(state.gang_reservations) >= GANGS_MAX:
        return
    chosen = _enough(state, waiting, now)
    if chosen:
        start_ms = max(node.empty_ms for node in chosen)
        order = min(order_of(head.workload) for head in waiting)
        nodes = tuple(sorted(node.name for node in chosen))
        state.gang_reservations[line] = GangReservation(nodes, line.isolated, start_ms, order)


def _are_open(state: State, nodes: tuple[str, ...]) -> bool:
    rows = _rows(state, nodes)
    return len(rows) == len(nodes) and bool(state.fleet.open[rows].all())


def _enough(state: State, waiting: list[PendingHead], now: int) -> list[_EmptiedNode]:
    """The nodes that are empty soonest and have room for all of a gang; none if all nodes together have not."""
    fleet = state.fleet
    reserved = {name for gang_reservation in state.gang_reservations.values() for name in gang_reservation.nodes}
    workload = waiting[0].workload
    own = open_to(fleet, workload.project, workload.policy.ask)
    usable = fleet.open if own is None else fleet.open & own
    names = [name for row, name in enumerate(fleet.names) if usable[row] and name not in reserved]
    unused = sorted((_EmptiedNode(state, name, now) for name in names), key=lambda node: (node.empty_ms, node.name))
    asks = [head.workload.policy.ask for head in waiting]
    fits = {ask: fits_when_empty(fleet, without_affinity(ask)) for ask in dict.fromkeys(asks)}
    chosen: list[_EmptiedNode] = []
    for ask in asks:
        found = next((node for node in (*chosen, *unused) if fits[ask][fleet.row(node.name)] and node.take(ask)), None)
        if found is None:
            return []
        if found in unused:
            unused.remove(found)
            chosen.append(found)
    return chosen
