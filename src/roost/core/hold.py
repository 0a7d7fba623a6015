"""Places kept for somebody: by a reservation, or for the head of a line that has waited long enough.

A head that has lost patience gets the node where it can start soonest. Others may pass it there only if they are sure
to be gone by then, or take no more than it leaves over: that is EASY backfill, node by node. Nothing here is stored.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from roost.core.backfill import reserve
from roost.core.charge import is_entitled
from roost.core.filters.pool import open_to
from roost.core.fleet import Mask
from roost.core.order import FOREVER, Line, Waiting, rank_of
from roost.core.scorers import ONE
from roost.model.instance import Instance
from roost.model.workload import Ask, Workload

if TYPE_CHECKING:
    from roost.core.state import State

Order = tuple[int, int, int]

HOLDS_MAX = 16  # at a time: each keeps a node from others, and each costs some look at every ask that could pass it
ROWS_MAX = 32  # nodes whose running work is looked at for a new head: those with the most room, 2 us an instance
STARTS_APART_MS = 10_000  # starts that are closer are the same to others until something else changes
GUESS_MIN_MS = 1_000  # a run of unknown length is taken to last as long again as it has, but at least this


class Hold(NamedTuple):
    """The node on which the head of a line is to start, when, and what is left over there then."""

    node: str
    for_whom: str  # the instance
    start_ms: int
    extra: dict[str, int]
    order: Order  # only who comes after it has to mind it
    is_made: bool = False  # by stopping others: then also who would only borrow the room


def order_of(workload: Workload) -> Order:
    """Who comes before whom, whatever their projects' shares are at the moment."""
    return -workload.policy.priority, *rank_of(workload)


def kept_out(state: "State", line: Line, workload: Workload, now: int) -> Mask | None:
    """Nodes that are not kept for somebody else, as far as this workload goes; None: nothing is kept."""
    own = open_to(state.fleet, line.project)
    if not state.holds and not state.reservations and not state.gang_holds:
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
    for gang, kept in state.gang_holds.items():
        if gang is not line and (kept.order < order or borrows) and ends_ms > kept.start_ms:
            allowed[[row for name in kept.nodes if (row := fleet.row(name)) >= 0]] = False
    for other, hold in state.holds.items():
        minds = other is not line and (hold.order <= order or (hold.is_made and borrows))
        if minds and not _may_pass(hold, policy.ask, ends_ms) and (row := fleet.row(hold.node)) >= 0:
            allowed[row] = False
    return None if allowed.all() else allowed


def pass_holds(state: "State", line: Line, node: str, ask: Ask, timeout_ms: int, now: int) -> None:
    """Somebody was placed: who outlasts a reserved start uses up what is left over there."""
    ends_ms = now + timeout_ms if timeout_ms else FOREVER
    for other, hold in state.holds.items():
        if other is not line and hold.node == node and ends_ms > hold.start_ms:
            extra = dict(hold.extra)
            for resource, amount in ask.resources:
                extra[resource] = extra.get(resource, 0) - amount
            state.holds[other] = hold._replace(extra=extra)


def wants_place(state: "State", line: Line, head: Waiting, now: int) -> bool:
    """Whether a place is to be kept for a head that did not fit: room is being made for it, or it waits too long."""
    if f"{head.workload.key}.{head.number}" in state.making_room or line in state.holds:
        return True
    return len(state.holds) < HOLDS_MAX and _is_impatient(state, line, head, now)


def tidy(state: "State") -> None:
    """Whoever does not wait any more needs no place."""
    for line, hold in list(state.holds.items()):
        head = line.head(state) if state.queue.lines.get(line.key) is line else None
        if head is None or hold.for_whom != f"{head.workload.key}.{head.number}":
            let_go(state, line)
    for key, node in list(state.making_room.items()):
        going = state.held.get(node, {}).values()
        if not _waits(state, key) or not any(each.state == "stopping" and each.preempted_by == key for each in going):
            del state.making_room[key]


def _waits(state: "State", key: str) -> bool:
    workload_key, _, index = key.rpartition(".")
    workload, instance = state.workloads.get(workload_key), state.instances.get(key)
    if workload is None:
        return False
    return instance.state == "queued" if instance is not None else state.has_fresh(workload)


def hold_place(state: "State", line: Line, head: Waiting, fits: Mask, now: int) -> None:
    """Keep a place for a head that did not fit: where room is being made for it, or where it can start soonest."""
    key = f"{head.workload.key}.{head.number}"
    made = state.making_room.get(key)
    others = {other: hold for other, hold in state.holds.items() if other is not line}
    # Where others are being stopped for it, who comes after it and only waits there has to look for another place:
    # otherwise those who were stopped would take the room again, and be stopped again, for ever.
    after = order_of(head.workload)
    yielding = [other for other, hold in others.items() if hold.node == made and hold.order > after]
    taken = {hold.node for other, hold in others.items() if other not in yielding}
    best: Hold | None = None
    known = state.holds.get(line)
    names = [made] if made is not None else [] if known is None else [known.node]
    if not names or state.fleet.row(names[0]) < 0 or not fits[state.fleet.row(names[0])]:
        names = _nodes(state, line.ask, fits)
    for name in names:
        if name in taken or state.fleet.row(name) < 0:
            continue
        hold = _start_on(state, name, key, head.workload, now)
        if hold is not None and (best is None or hold.start_ms < best.start_ms):
            best = hold
    if best is None:
        let_go(state, line)
        return
    if best.node == made:
        for other in yielding:
            let_go(state, other)
    best = best._replace(is_made=made is not None)
    if known is None or _gist(known) != _gist(best):
        state.holds[line] = best
        state.fleet.touch(best.node)
        if known is not None:
            state.fleet.touch(known.node)


def let_go(state: "State", line: Line) -> None:
    """The head has its place, or does not want it any more: whoever was kept from it is looked at again."""
    hold = state.holds.pop(line, None)
    if hold is not None:
        state.fleet.touch(hold.node)


def end_ms(state: "State", instance: Instance, now: int) -> int:
    """When an instance ends, as far as one can say: by its expected length, else its timeout, else as long again."""
    policy = state.spec_of(instance).policy
    if instance.state == "stopping":
        return now + policy.grace_ms
    if policy.kind != "job":
        return FOREVER
    began = instance.started_ms or instance.since_ms
    length = policy.expected_ms or policy.timeout_ms
    if not length:
        return now + max(now - began, GUESS_MIN_MS)
    return max(now, began + length)


def _gist(hold: Hold) -> tuple[str, str, bool, int, dict[str, int]]:
    """What others see of a hold: a start that is only guessed moves all the time, and nobody need look for a second."""
    return hold.node, hold.for_whom, hold.is_made, hold.start_ms // STARTS_APART_MS, hold.extra


def _may_pass(hold: Hold, ask: Ask, ends_ms: int) -> bool:
    if ends_ms <= hold.start_ms:
        return True
    return not ask.gpu_count and all(hold.extra.get(each, 0) >= amount for each, amount in ask.resources)


def _is_impatient(state: "State", line: Line, head: Waiting, now: int) -> bool:
    since = max(head.workload.submitted_ms, head.workload.released_ms)
    if head.again:
        since = state.instances[f"{head.workload.key}.{head.number}"].since_ms
    until = since + state.settings.patience_ms
    if until > now:
        state.look_at(until)
    return until <= now


def _nodes(state: "State", ask: Ask, fits: Mask) -> list[str]:
    """The nodes that could take it; of many, those with the most room."""
    fleet = state.fleet
    rows = np.flatnonzero(fits & fleet.open)
    if len(rows) > ROWS_MAX:
        room = np.full(len(rows), ONE)
        for resource, amount in ask.resources:
            room = np.minimum(room, np.maximum(fleet.free(resource)[rows], 0) * ONE // amount)
        rows = np.sort(rows[np.argsort(-room, kind="stable")[:ROWS_MAX]])
    return [fleet.names[row] for row in rows.tolist()]


def _start_on(state: "State", name: str, key: str, workload: Workload, now: int) -> Hold | None:
    """When an instance fits on one node if what runs there ends as it says."""
    fleet, row, ask = state.fleet, state.fleet.row(name), workload.policy.ask
    ends = sorted(
        [
            (end, token, instance)
            for token, instance in state.held[name].items()
            if not instance.behind and (end := end_ms(state, instance, now)) != FOREVER
        ]
    )
    extra = {each: total.item(row) - fleet.used[each].item(row) for each, total in fleet.total.items()}
    back = [(end, dict(state.spec_of(each).policy.ask.resources)) for end, _, each in ends]
    start = now
    for resource, amount in ask.resources:
        found = reserve(amount, extra.get(resource, 0), [(end, freed.get(resource, 0)) for end, freed in back], now)
        if found is None:
            return None
        start = max(start, found.start)
        extra[resource] -= amount
    if ask.gpu_count:
        devices = _devices_free(state, fleet.devices[row].tolist(), ask, [(end, each) for end, _, each in ends], now)
        if devices is None:
            return None
        start = max(start, devices)
    for end, freed in back:
        if end <= start:
            for resource, amount in freed.items():
                extra[resource] += amount
    return Hold(name, key, start, extra, order_of(workload))


def _devices_free(state: "State", free: list[int], ask: Ask, ends: list[tuple[int, Instance]], now: int) -> int | None:
    """When the devices allow it."""
    if sum(left >= ask.gpu_milli for left in free) >= ask.gpu_count:
        return now
    for end, instance in ends:
        for device in instance.devices:
            free[device] += state.spec_of(instance).policy.ask.gpu_milli
        if sum(left >= ask.gpu_milli for left in free) >= ask.gpu_count:
            return end
    return None
