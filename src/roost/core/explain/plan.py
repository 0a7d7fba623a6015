"""Plans: what a submission did to a copy of the state (`step.make_plan`), and whether it would still do the same."""

from collections.abc import Iterable

from roost.core.explain.notes import notes_on
from roost.core.explain.why import why
from roost.core.state.outcome import Paced, Step
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.model.errors import Conflict, RoostError
from roost.model.events import Submit
from roost.model.reasons.reason import BlockerText, joined
from roost.model.records.instance import Instance
from roost.model.records.plan import Pending, Placing, Plan, Stopping, differences
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED, InstanceState, WorkloadKind

PASSES_MAX = 5  # passes of the queue that one plan may take: 10,000 placements, some 3 MB in one commit
PENDING_UNITS = 20  # of work: why it is pending
DIFFERENCES_MAX = 10  # listed; the rest is counted


def check_plan(expected: Plan, plan: Plan | RoostError) -> None:
    """Refuse a submission that would do something else than was planned, or would now be refused."""
    if isinstance(plan, RoostError):
        text = ("the plan can no longer be applied: ", *(plan.text or (str(plan),)))
        raise Conflict("the plan is stale", code="plan_stale", text=text, reason=plan.reason) from None
    found = differences(expected, plan)
    if found:
        more = f"; and {len(found) - DIFFERENCES_MAX} more" if len(found) > DIFFERENCES_MAX else ""
        text = ("the plan is stale: ", *joined("; ", found[:DIFFERENCES_MAX]), more)
        raise Conflict("the plan is stale", code="plan_stale", text=text)


def plan_of(state: State, copy: State, submit: Submit, passes: list[Step]) -> Paced[Plan]:
    """What the passes of a trial did to a copy of the state."""
    counts = {spec.key: spec.count for spec in submit.specs}
    before = {key: workload for key in counts if (workload := _existed(state, copy, key)) is not None}
    changed = tuple(key for key, workload in before.items() if copy.workloads[key].version != workload.version)
    unchanged = tuple(key for key in before if key not in changed)
    created = tuple(key for key in counts if key not in before)
    own = frozenset((*created, *changed))
    touched = dict.fromkeys(change.key for done in passes for change in done.changes if change.kind == "instance")
    held = [copy.instances[key] for key in touched if key in copy.instances]
    new = {placed.instance for done in passes for placed in done.placed}
    placed = [
        _placing(instance)
        for instance in held
        if instance.workload in own and instance.state in ALLOCATED and instance.key in new
    ]
    pending: list[Pending] = []
    for key in (*created, *changed):
        found = _pending(copy, key, counts[key])
        pending += [found] if found is not None else []
        yield PENDING_UNITS if found is not None else 1
    stopped = _stopped(state, copy, frozenset(created), touched)
    wanted = [copy.workloads[key] for key in (*created, *changed) if key in copy.workloads]
    notes = tuple((workload.key, note) for workload in wanted for note in notes_on(state, workload))
    next_boot = _next_boot(copy, changed)
    return Plan(created, changed, unchanged, tuple(placed), tuple(pending), stopped, next_boot, notes)


def _next_boot(copy: State, changed: Iterable[str]) -> tuple[str, ...]:
    """Virtual machines that get their new version when they are started or rebooted."""
    found: list[str] = []
    for workload in (copy.workloads[key] for key in changed):
        if workload.policy.kind == WorkloadKind.VM:
            live = [instance for instance in instances_of(copy, workload) if instance.state in ALLOCATED]
            found += [instance.key for instance in live if instance.version != workload.version]
    return tuple(found)


def _placing(instance: Instance) -> Placing:
    decision = instance.decision
    strategy = decision.strategy if decision is not None else ""
    return Placing(instance.key, instance.node, strategy, instance.devices, instance.ports)


def _existed(state: State, copy: State, key: str) -> Workload | None:
    before, after = state.workloads.get(key), copy.workloads.get(key)
    return before if before is not None and after is not None and before.serial == after.serial else None


def _pending(copy: State, key: str, count: int) -> Pending | None:
    workload = copy.workloads.get(key)
    if workload is None:
        return Pending(key, count, "rejected", ("it does not queue, and its record is not kept",))
    counts = copy.progress_of(workload).counts
    waiting = counts.get(InstanceState.QUEUED, 0) + workload.count - copy.placed_count(workload)
    if not waiting:
        return None
    if workload.unstarted_end_state:
        text = (workload.reason,) if workload.reason is not None else ()
        return Pending(workload.key, waiting, workload.unstarted_end_state, text)
    report = why(copy, workload.key)
    if report.code == "placeable":  # the passes of a plan are bounded
        return Pending(workload.key, waiting, "later", ("there is room; it is placed in a later pass",))
    blockers = tuple(BlockerText(blocker.code, blocker.reason, blocker.nodes) for blocker in report.blockers)
    return Pending(workload.key, waiting, report.code, report.text, blockers)


def _stopped(state: State, copy: State, own: frozenset[str], touched: Iterable[str]) -> tuple[Stopping, ...]:
    found = []
    for key in touched:
        before, after = state.instances.get(key), copy.instances.get(key)
        if before is None or after is None or after.workload in own:
            continue
        if (
            before.state in ALLOCATED
            and before.state != InstanceState.STOPPING
            and after.state not in (InstanceState.PLACED, InstanceState.STARTING, InstanceState.RUNNING)
        ):
            found.append(Stopping(key, before.node, after.reason))
    return tuple(found)
