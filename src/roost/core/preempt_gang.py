"""Preemption for a gang: whoever has to go so that all of it fits, or nobody.

Its members are tried one after the other: who fits is put there on trial, for who does not the smallest set on one node
is taken away on trial. Only if all of them come in are the others really stopped; the nodes are kept for the gang.
"""

import numpy as np

from roost.core.charge import excess
from roost.core.choose import choose, plain, social_mask
from roost.core.claim import Claim, claim, claim_of, subjects_of
from roost.core.effects import Step
from roost.core.filters.gpu import allows, devices_of
from roost.core.filters.ports import ports_of
from roost.core.hold import kept_out, order_of
from roost.core.hold_gang import GangHold
from roost.core.order import Line, Waiting
from roost.core.preempt import Reach, Unit, cost_of, could_preempt, reach_of, smallest, stop_for, units_on
from roost.core.shortlist import could_fit
from roost.core.state import State
from roost.core.strategies import STRATEGIES

MEMBERS_MAX = 64  # of a gang for which others are stopped; each may look at hundreds of nodes
NODES_MAX = 64
FIRST_FIT = "first_fit"  # where those go that fit anyway does not matter here


class _Trial:
    """What was put and taken away on trial; `undo` leaves nothing of it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._done: list[tuple[str, Claim, int]] = []
        self.gone: set[int] = set()
        self.victims: list[tuple[Waiting, str, tuple[Unit, ...]]] = []
        self.nodes: set[str] = set()

    def take(self, node: str, held: Claim, sign: int = 1) -> None:
        self._state.fleet.take(node, held, sign, is_trial=True)
        self._done.append((node, held, sign))

    def undo(self) -> None:
        for node, held, sign in reversed(self._done):
            self._state.fleet.take(node, held, -sign, is_trial=True)


def preempt_gang(state: State, out: Step, line: Line, waiting: list[Waiting], now: int) -> None:
    """Stop what has to go for all of a gang, if that is possible."""
    keys = [f"{head.workload.key}.{head.number}" for head in waiting]
    if not waiting or len(waiting) > MEMBERS_MAX or any(key in state.making_room for key in keys):
        return
    if not any(could_preempt(state, head.workload) for head in waiting):
        return
    if any(excess(state, line.project, head.workload.policy.ask, len(waiting)) for head in waiting):
        return
    trial = _Trial(state)
    reaches = {head.workload.key: reach_of(state, head.workload) for head in waiting}
    enough = all(_comes_in(state, line, head, trial, reaches, now) for head in waiting)
    trial.undo()
    if not enough:
        return
    for head, node, units in trial.victims:
        key = f"{head.workload.key}.{head.number}"
        state.making_room[key] = node
        for victim in [each for unit in units for each in unit.everywhere]:
            if victim.state != "stopping":
                stop_for(state, out, victim, head.workload, key, now)
    order = min(order_of(head.workload) for head in waiting)
    state.gang_holds[line] = GangHold(tuple(sorted(trial.nodes)), line.alone, now, order)


def _comes_in(state: State, line: Line, head: Waiting, trial: _Trial, reaches: dict[str, Reach], now: int) -> bool:
    """Put one of the gang where it fits, or where it would if somebody went."""
    fleet, workload, ask = state.fleet, head.workload, head.workload.policy.ask
    subjects = subjects_of(workload.project, workload.key, workload.policy.labels)
    allowed = kept_out(state, line, workload, now)
    row = choose(fleet, state.shortlists, ask, STRATEGIES[FIRST_FIT], subjects, allowed=allowed).row
    if row < 0:
        fits = could_fit(fleet, plain(ask)) & fleet.open
        for mask in (allowed, social_mask(fleet, ask, subjects, fits)):
            fits = fits if mask is None else fits & mask
        row = _make_way(state, head, [int(each) for each in np.flatnonzero(fits)[:NODES_MAX]], trial, reaches)
        if row < 0:
            return False
    name = fleet.names[row]
    devices = devices_of(fleet, ask, row) if ask.gpu_count and allows(fleet, ask, row) else ()
    ports = ports_of(fleet, ask, row) if ask.ports else ()
    trial.take(name, claim(workload.project, workload.key, workload.policy, devices, ports))
    trial.nodes.add(name)
    return True


def _make_way(state: State, head: Waiting, rows: list[int], trial: _Trial, reaches: dict[str, Reach]) -> int:
    """Take the smallest set away from the node on which it is smallest; the row of that node, or -1."""
    best: tuple[tuple[int, ...], int, tuple[Unit, ...]] | None = None
    for row in rows:
        name = state.fleet.names[row]
        units = [
            unit
            for unit in units_on(state, head.workload, name, reaches[head.workload.key])
            if not any(each.token in trial.gone for each in unit.everywhere)
        ]
        chosen = smallest(state, name, head.workload.policy.ask, units) if units else None
        if chosen and (best is None or (cost_of(chosen), row) < best[:2]):
            best = (cost_of(chosen), row, chosen)
    if best is None:
        return -1
    _, row, units_gone = best
    for victim in [each for unit in units_gone for each in unit.everywhere]:
        trial.take(victim.node, claim_of(state.spec_of(victim), victim), -1)
        trial.gone.add(victim.token)
    trial.victims.append((head, state.fleet.names[row], units_gone))
    return row
