"""Nodes kept for a gang that has waited long: enough to hold all of it, those that are empty soonest.

They are kept whole: others come only if they are sure to be gone by the time the last of these nodes is empty. What
never ends, services, is left where it is and counted as taken. The gang starts as soon as all of it fits anywhere.
"""

from typing import TYPE_CHECKING, NamedTuple

from roost.core.choose import plain
from roost.core.filters.pool import open_to
from roost.core.hold import Order, end_ms, order_of
from roost.core.order import FOREVER, Line, Waiting
from roost.core.shortlist import could_fit
from roost.model.workload import Ask

if TYPE_CHECKING:
    from roost.core.state import State

GANGS_MAX = 2  # for which nodes are kept at a time: each may keep much of a fleet from others


class GangHold(NamedTuple):
    """Nodes kept for a gang, and when the last of them is empty."""

    nodes: tuple[str, ...]
    for_whom: str
    start_ms: int
    order: Order


class _Room:
    """What a node has once all that ends has ended."""

    def __init__(self, state: "State", name: str, now: int) -> None:
        row = state.fleet.row(name)
        self.name = name
        self.free = {resource: total.item(row) for resource, total in state.fleet.total.items()}
        self.empty_ms = now
        for instance in state.held[name].values():
            if instance.behind:
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


def hold_gang(state: "State", line: Line, waiting: list[Waiting], now: int) -> None:
    """Keep nodes for a gang that does not fit, if it has waited long enough and all of it would fit on empty nodes."""
    known = state.gang_holds.get(line)
    if not waiting or (known is not None and _still_stands(state, known)):
        return
    since = min(max(head.workload.submitted_ms, head.workload.released_ms) for head in waiting)
    until = since + state.settings.patience_ms
    if until > now:
        state.look_at(until)
        return
    let_gang_go(state, line)
    if len(state.gang_holds) >= GANGS_MAX:
        return
    chosen = _enough(state, waiting, now)
    if chosen:
        start_ms = max(room.empty_ms for room in chosen)
        order = min(order_of(head.workload) for head in waiting)
        nodes = tuple(sorted(room.name for room in chosen))
        state.gang_holds[line] = GangHold(nodes, line.alone, start_ms, order)


def let_gang_go(state: "State", line: Line) -> None:
    """The gang has its place, or is not there any more."""
    hold = state.gang_holds.pop(line, None)
    for node in hold.nodes if hold is not None else ():
        state.fleet.touch(node)


def tidy_gangs(state: "State") -> None:
    """A gang that does not wait any more needs no nodes."""
    for line in list(state.gang_holds):
        if state.queue.lines.get(line.key) is not line or line.head(state) is None:
            let_gang_go(state, line)


def _still_stands(state: "State", hold: GangHold) -> bool:
    fleet = state.fleet
    return all((row := fleet.row(name)) >= 0 and fleet.open[row] for name in hold.nodes)


def _enough(state: "State", waiting: list[Waiting], now: int) -> list[_Room]:
    """The nodes that are empty soonest and hold all of a gang; none if all nodes together would not."""
    fleet = state.fleet
    kept = {name for hold in state.gang_holds.values() for name in hold.nodes}
    closed = sorted(
        (_Room(state, name, now) for row, name in enumerate(fleet.names) if fleet.open[row] and name not in kept),
        key=lambda room: (room.empty_ms, room.name),
    )
    fits = {ask: could_fit(fleet, plain(ask)) for ask in {head.workload.policy.ask: None for head in waiting}}
    own = open_to(fleet, waiting[0].workload.project)
    if own is not None:
        closed = [room for room in closed if own[fleet.row(room.name)]]
    chosen: list[_Room] = []
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
