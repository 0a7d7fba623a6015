"""Plans: what a submission would do, found out by the real core on a copy; and whether it would still do the same.

`step` is handed in: it checks a plan itself, in the middle of a step, so that nothing comes between check and deed.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from roost.core.effects import Step
from roost.core.explain import why
from roost.core.state import State
from roost.core.whatif import glance
from roost.model.errors import Conflict, RoostError
from roost.model.events import Event, Submit
from roost.model.instance import Instance
from roost.model.plan import Pending, Placing, Plan, Reason, Stopping, differences
from roost.model.states import HOLDING
from roost.model.workload import Workload

PASSES_MAX = 5  # passes of the queue that one plan may take: 10,000 placements, some 3 MB in one commit
DIFFERENCES_MAX = 10  # told; how many there are is told of all

Stepping = Callable[[State, Sequence[Event], int], Step]


def make_plan(step: Stepping, state: State, submit: Submit, now: int) -> Plan:
    """What a submission would do now. Raises what it would be refused with. The state stays as it is."""
    copy = glance(state)
    step(copy, (), now)  # what would happen anyway is not of the plan's doing
    passes = [step(copy, (msgspec.structs.replace(submit, expected=None),), now)]
    for reply in passes[0].replies:
        if isinstance(reply.value, RoostError):
            raise reply.value
    while passes[-1].wake_at_ms == copy.now_ms and len(passes) < PASSES_MAX:
        passes.append(step(copy, (), now))
    return _told(state, copy, submit, passes)


def refusal(step: Stepping, state: State, submit: Submit, now: int) -> RoostError | None:
    """Why a planned submission cannot be carried out as planned; None: it can."""
    assert submit.expected is not None
    try:
        found = differences(submit.expected, make_plan(step, state, submit, now))
    except RoostError as error:
        return Conflict(f"the plan cannot be applied any more: {error}", code="plan_stale")
    if not found:
        return None
    more = f"; and {len(found) - DIFFERENCES_MAX} more" if len(found) > DIFFERENCES_MAX else ""
    words = f"the plan does not hold any more: {'; '.join(found[:DIFFERENCES_MAX])}{more}"
    return Conflict(words, code="plan_stale")


def _told(state: State, copy: State, submit: Submit, passes: list[Step]) -> Plan:
    counts = {f"{each.project}/{each.name}": each.count for each in submit.wanted}
    before = {key: workload for key in counts if (workload := _there_before(state, copy, key)) is not None}
    changed = tuple(key for key, workload in before.items() if copy.workloads[key].version != workload.version)
    unchanged = tuple(key for key in before if key not in changed)
    created = tuple(key for key in counts if key not in before)
    own = frozenset((*created, *changed))
    touched = dict.fromkeys(each.key for done in passes for each in done.changes if each.kind == "instance")
    held = [copy.instances[key] for key in touched if key in copy.instances]
    new = {each.instance for done in passes for each in done.placed}
    placed = [_placing(each) for each in held if each.workload in own and each.state in HOLDING and each.key in new]
    pending = [found for key in (*created, *changed) if (found := _pending(copy, key, counts[key])) is not None]
    stopped = _stopped(state, copy, frozenset(created), touched)
    return Plan(created, changed, unchanged, tuple(placed), tuple(pending), stopped)


def _placing(instance: Instance) -> Placing:
    decision = instance.decision
    strategy = decision.strategy if decision is not None else ""
    return Placing(instance.key, instance.node, strategy, instance.devices, instance.ports)


def _there_before(state: State, copy: State, key: str) -> Workload | None:
    """A workload that was there already, and still is."""
    before, after = state.workloads.get(key), copy.workloads.get(key)
    return before if before is not None and after is not None and before.serial == after.serial else None


def _pending(copy: State, key: str, count: int) -> Pending | None:
    """Who of a workload waits, or was turned away, and why."""
    workload = copy.workloads.get(key)
    if workload is None:
        return Pending(key, count, "rejected", "it does not want to wait, and is not kept")
    counts = copy.progress_of(workload).counts
    waiting = counts.get("queued", 0) + workload.count - copy.begun(workload)
    if not waiting:
        return None
    if workload.rest:
        return Pending(workload.key, waiting, workload.rest, workload.cause)
    told = why(copy, workload.key)
    if told.code == "placeable":  # the passes of a plan are bounded
        return Pending(workload.key, waiting, "later", "there is room; it is placed in a later pass")
    blockers = tuple(Reason(each.code, each.reason, each.nodes) for each in told.blockers)
    return Pending(workload.key, waiting, told.code, told.words, blockers)


def _stopped(state: State, copy: State, own: frozenset[str], touched: Iterable[str]) -> tuple[Stopping, ...]:
    """Who held room before and is stopped, or has lost it."""
    found = []
    for key in touched:
        before, after = state.instances.get(key), copy.instances.get(key)
        if before is None or after is None or after.workload in own:
            continue
        if (
            before.state in HOLDING
            and before.state != "stopping"
            and after.state not in ("placed", "starting", "running")
        ):
            found.append(Stopping(key, before.node, after.cause))
    return tuple(found)
