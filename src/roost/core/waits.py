"""What keeps somebody waiting although nodes have room: a quota, its gang, places kept for others."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from roost.core.charge import excess
from roost.core.filters.pool import accepted_by, open_to
from roost.core.filters.resources import amount_words
from roost.core.gang import members, missing, shortfall
from roost.core.hold import kept_out
from roost.core.order import Line
from roost.core.state import State
from roost.model.project import Pool
from roost.model.states import HOLDING
from roost.model.workload import Workload


class Reason(NamedTuple):
    """Why somebody waits: a code, words, and how many nodes it is about (0: none in particular)."""

    code: str  # quota | gang | kept | pool_failed
    words: str
    nodes: int = 0


def reasons(state: State, workload: Workload) -> list[Reason]:
    """All that keeps an instance of a workload waiting apart from the nodes themselves."""
    found = []
    policy = workload.policy
    over = excess(state, workload.project, policy.ask)
    if over:
        by = ", ".join(amount_words(name, amount) for name, amount in over.items())
        found.append(Reason("quota", f"quota: project {workload.project} would pass its quota by {by}"))
    if policy.gang:
        found.append(Reason("gang", f"gang: {_gang_words(state, policy.gang)}"))
    line = _line_of(state, workload)
    failed = failed_pools(state, accepted_by(state.fleet, policy.ask))
    if failed:
        found.append(Reason("pool_failed", f"pool: {', '.join(map(_failed_words, failed))}, and nothing stands in"))
    allowed = kept_out(state, line, workload, state.now_ms)
    own = open_to(state.fleet, workload.project)
    if allowed is not None and not (own is not None and bool((own == allowed).all())):
        rows = np.flatnonzero(~allowed if own is None else own & ~allowed)
        names = {state.fleet.names[row] for row in rows.tolist()}
        found.append(Reason("kept", f"kept: {_keepers(state, workload, line, names)}", len(rows)))
    return found


def failed_pools(state: State, names: Iterable[str]) -> list[Pool]:
    """The pools of these names, if all of them have failed."""
    pools = [state.pools.get(each) for each in names]
    failed = [each for each in pools if each is not None and each.status == "failed"]
    return failed if len(failed) == len(pools) else []


def _failed_words(pool: Pool) -> str:
    return f"{pool.name} has failed" + (f" ({pool.reason})" if pool.reason else "")


def _line_of(state: State, workload: Workload) -> Line:
    key = state.queue.key_of(workload)
    return state.queue.lines.get(key) or Line(*key)


def _gang_words(state: State, gang: str) -> str:
    lacking = missing(state, gang)
    if lacking:
        return f"{lacking} more of it have to be submitted"
    for resource, (needed, there) in shortfall(state, gang).items():
        return f"all of it needs {amount_words(resource, needed)}, all nodes have {amount_words(resource, there)}"
    counts = [state.progress_of(each).counts for each in members(state, gang)]
    if any(each.get(holding) for each in counts for holding in HOLDING):
        return "the others of it have to stop before all of it starts again"
    return "all of it has to fit at once"


def _keepers(state: State, workload: Workload, line: Line, names: set[str]) -> str:
    reserved = [
        f"reserved for project {each.project}"
        for each in state.reservations.values()
        if each.project != workload.project and names.intersection(each.nodes)
    ]
    held = [
        f"kept for {hold.for_whom}" for other, hold in state.holds.items() if other is not line and hold.node in names
    ]
    gangs = [each for other, each in state.gang_holds.items() if other is not line and names.intersection(each.nodes)]
    held += [f"kept for gang {each.for_whom}" for each in gangs]
    return ", ".join(dict.fromkeys(reserved + held))
