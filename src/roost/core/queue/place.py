"""Who goes where: line by line in order of priority and age, each placement seeing the ones before it."""

from bisect import bisect_left
from heapq import heappop, heappush
from typing import NamedTuple

from roost.core.orders import run_order
from roost.core.placement.filters import DYNAMIC
from roost.core.placement.filters.ports import ports_of
from roost.core.placement.gpu.fragmentation import learn_typical
from roost.core.placement.score_cache import NOT_ELIGIBLE, fits_when_empty
from roost.core.placement.select import Choice, affinity_mask, choose, without_affinity
from roost.core.placement.strategies import Strategy, strategy_named
from roost.core.queue import backfill
from roost.core.queue.backfill import drop_stale_gangs, release_gang, reserve_for_gang
from roost.core.queue.fair_share import quota_excess, share_of, totals_of
from roost.core.queue.gang import pending_members
from roost.core.queue.preemption import could_preempt, preempt, preempt_gang
from roost.core.queue.prefill import last_prefilled, prefill_depth
from roost.core.state.allocation import Allocation, make_allocation, selectors_of
from roost.core.state.fleet import Fleet, Mask, Scores
from roost.core.state.outcome import Placed, Step
from roost.core.state.queue import EquivalenceClass, PendingHead, Queue
from roost.core.state.state import State, in_maintenance
from roost.core.transitions import move, prefill
from roost.model.limits import CANDIDATES_MAX
from roost.model.reasons.attempts import SUBMITTED, PlacedOnNode, Prefilled
from roost.model.reasons.subjects import InstanceRef
from roost.model.records.instance import Decision, Instance, pack_decision
from roost.model.records.transition import Transition
from roost.model.records.workload import Ask, Workload
from roost.model.states import ALLOCATED, InstanceState, WhenFull, WorkloadKind

PREEMPTING_MAX = 16  # heads for which others are stopped in one pass; each looks at all that runs, some milliseconds
MASK_64 = (1 << 64) - 1
ROWS_MAX = 32  # changed rows looked at one by one, half a microsecond each: a whole shortlist costs more than all
SMALL_FLEET = 32  # below this, sorting in Python beats numpy's fixed costs


class Turn(NamedTuple):
    """Whose turn it is: by priority, by its project's share, by urgency and age. An age is nobody else's."""

    order: tuple[int, int, int, int, int]
    group: EquivalenceClass
    head: PendingHead


def place(state: State, out: Step, now: int) -> bool:
    """Place what fits. True: there is more to place than one pass may do."""
    if in_maintenance(state):
        return False
    fleet, queue = state.fleet, state.queue
    backfill.drop_stale(state)
    drop_stale_gangs(state)
    lines = [line for line in queue.due(fleet) if line.blocked_at != fleet.freed or line.depends_on_affinity]
    is_whole = len(lines) == len(queue.classes)
    totals = totals_of(fleet) if len({line.project for line in lines}) > 1 else {}
    heads: list[Turn] = []
    for line in lines:
        _push_head(state, heads, line, totals)
    placed, tries = 0, PREEMPTING_MAX
    first: EquivalenceClass | None = None  # the most urgent line that finds no room
    while heads:
        if placed >= state.settings.placements_max:
            queue.recheck_next_pass()
            return True
        order, line, head = heappop(heads)
        if state.head_of(line) != head:  # it stood in two lines, and has been placed from the other
            _push_head(state, heads, line, totals)
            continue
        if totals and order[1] != (share := share_of(state, line.project, totals)):
            heappush(heads, Turn((order[0], share, *order[2:]), line, head))  # its project has got more since
            continue
        if line.is_gang:
            done = _place_gang(state, out, line, now)
        else:
            done = not _is_still_blocked(fleet, line) and _place_head(state, out, line, head, now)
        if done:
            placed += done
            backfill.release(state, line)
            release_gang(state, line)
            _push_head(state, heads, line, totals)
        elif (line.is_gang or not line.has_isolated(head)) and not line.unsatisfiable:
            first = first or line
            is_whole = is_whole and line.project == first.project
            if not line.is_gang:
                tries -= _preempt_or_reserve(state, out, line, head, now, may_stop=tries > 0)
    if first is not None and is_whole:  # nobody more urgent waits, and no other project for its share
        prefill_class(state, out, first, now)
    return queue.is_due(fleet)


def prefill_class(state: State, out: Step, line: EquivalenceClass, now: int) -> None:
    """Let some of a line stand behind its own short runs that have just got room, one behind each in turn."""
    depth = prefill_depth(state, line) if not quota_excess(state, line.project, line.ask, 0) else 0
    heads = [*out.activated, *(state.instances[placed.instance] for placed in out.placed)] if depth else []
    chains = [
        last_prefilled(state, instance)
        for instance in {
            instance.token: instance for instance in heads
        }.values()  # who ended at once may have been placed again
        if instance.state in ALLOCATED
        and not instance.prefilled_behind
        and Queue.key_of(state.spec_of(instance)) == line.key
    ]
    chains = [chain for chain in chains if _is_job(state, chain[0]) and chain[0].state != InstanceState.STOPPING]
    while chains := [chain for chain in chains if chain[1] < depth]:
        for place, (last, behind) in enumerate(chains):
            head = state.head_of(line)
            if head is None or head.workload.policy.kind != WorkloadKind.JOB:
                return
            if not _can_prefill(state, line, head, last, now):
                chains[place] = (last, depth)
                continue
            instance = _prefill_behind(state, out, head, last, now)
            line.take(head)
            chains[place] = (instance, behind + 1)


def _can_prefill(state: State, line: EquivalenceClass, head: PendingHead, last: Instance, now: int) -> bool:
    """Whether an instance may go where another is, and leaves with it: with its node, or as soon as a stream breaks."""
    workload, other = head.workload, state.spec_of(last)
    policy, fleet, row = workload.policy, state.fleet, state.fleet.row(last.node)
    if policy.when_full == WhenFull.REJECT or not fleet.open[row]:
        return False
    if (policy.fenced, policy.when_lost) != (other.policy.fenced, other.policy.when_lost):
        return False
    allowed = backfill.unreserved_mask(state, line, workload, now)
    if allowed is not None and not allowed[row]:
        return False
    if workload is other or not fleet.topology.anti_affinity:
        return True
    social = affinity_mask(fleet, line.ask, _subjects(workload), fleet.open)
    return social is None or bool(social[row])


def _is_job(state: State, instance: Instance) -> bool:
    return state.spec_of(instance).policy.kind == WorkloadKind.JOB


def _prefill_behind(state: State, out: Step, head: PendingHead, last: Instance, now: int) -> Instance:
    """Put an instance behind another on its node."""
    instance = _instance_of(state, head)
    instance.decision_packed, instance.node = last.decision_packed, last.node
    instance.devices = instance.ports = ()
    instance.attempt += 1
    instance.token = state.next_serial()
    instance.exit_code = instance.signal = instance.log_size = None
    instance.started_ms = instance.step = 0
    prefill(state, instance, last)
    move(state, out, instance, InstanceState.PLACED, Prefilled(instance.node, InstanceRef.of(last.key)), now)
    _order_run(state, out, instance, "standing ahead")
    return instance


def _push_head(state: State, heads: list[Turn], line: EquivalenceClass, totals: dict[str, int]) -> None:
    """Let the head of a line wait for its turn."""
    head = state.head_of(line)
    if head is None:
        state.queue.forget(line)
        backfill.release(state, line)
        release_gang(state, line)
        return
    policy = head.workload.policy
    share = share_of(state, line.project, totals) if totals else 0
    heappush(heads, Turn((-policy.priority, share, *head.rank, head.number), line, head))


def _preempt_or_reserve(
    state: State, out: Step, line: EquivalenceClass, head: PendingHead, now: int, *, may_stop: bool
) -> bool:
    """The head fits nowhere: who matters less may have to go for it, and after a while a place is kept for it.

    Returns True if a preemption search ran (it is expensive).
    """
    may_stop = may_stop and could_preempt(state, head.workload)
    if not may_stop and not backfill.wants_reservation(state, line, head, now):
        return False
    if quota_excess(state, line.project, line.ask):
        return False
    fits = fits_when_empty(state.fleet, without_affinity(line.ask))
    kept = backfill.unreserved_mask(state, line, head.workload, now)
    social = affinity_mask(state.fleet, line.ask, _subjects(head.workload), fits)
    for mask in (kept, social):
        fits = fits if mask is None else fits & mask
    if may_stop:
        preempt(state, out, line, head, fits, now)
    if backfill.wants_reservation(state, line, head, now):
        backfill.reserve_node(state, line, head, fits, now)
    return may_stop


def _is_still_blocked(fleet: Fleet, line: EquivalenceClass) -> bool:
    """Whether a line that fitted nowhere fits nowhere now either: only the rows that changed since could take it."""
    rows = fleet.changed_since(line.position) if line.layout == fleet.layout else None
    if rows is None or len(rows) > ROWS_MAX:
        return False
    if any(all(node_filter.allows(fleet, line.ask, row) for node_filter in DYNAMIC) for row in rows):
        return False
    line.block(fleet, by_nodes=True)
    return True


def _place_head(state: State, out: Step, line: EquivalenceClass, head: PendingHead, now: int) -> bool:
    """Place one instance. If it is kept out by its neighbours alone, it leaves the line to the others."""
    if quota_excess(state, line.project, line.ask):
        line.block(state.fleet, by_nodes=False)
        return False
    allowed = backfill.unreserved_mask(state, line, head.workload, now)
    choice = _choose(state, head, allowed)
    line.unsatisfiable = choice.unsatisfiable
    if choice.row >= 0:
        _assign(state, out, line, head, choice, now)
        line.take(head)
        return True
    line.block(state.fleet, by_nodes=True)
    if choice.blocked_by_affinity and not line.isolated and line.ask.affinity is None:
        state.queue.isolate(line, head)
    return False


def _place_gang(state: State, out: Step, line: EquivalenceClass, now: int) -> int:
    """Place all of a gang, or nobody: each one is tried first, with all the others before it."""
    fleet = state.fleet
    line.block(fleet, by_nodes=False)
    waiting = pending_members(state, line)
    if not _is_enough(state, waiting):
        preempt_gang(state, out, line, waiting, now)
        reserve_for_gang(state, line, waiting, now)
        return 0
    tried: list[tuple[PendingHead, Choice, Allocation]] = []
    serial = state.serial
    for head in waiting:
        workload, policy = head.workload, head.workload.policy
        allowed = backfill.unreserved_mask(state, line, workload, now)
        choice = _choose(state, head, allowed) if not quota_excess(state, line.project, policy.ask) else None
        if choice is None or choice.row < 0:
            break
        devices, ports = _devices_and_ports(fleet, policy.ask, choice)
        held = make_allocation(workload.project, workload.key, policy, devices, ports)
        tried.append((head, choice, held))
        fleet.take(fleet.names[choice.row], held, is_trial=True)
        state.charge(workload.project, policy.ask, 1)
        state.serial += 1  # chance draws by the serial: each of them its own
    state.serial = serial
    for head, choice, held in reversed(tried):
        fleet.take(fleet.names[choice.row], held, -1, is_trial=True)
        state.charge(head.workload.project, head.workload.policy.ask, -1)
    line.position = fleet.position
    if len(tried) < len(waiting):
        preempt_gang(state, out, line, waiting, now)
        reserve_for_gang(state, line, waiting, now)
        return 0
    for head, choice, _ in tried:
        _assign(state, out, line, head, choice, now)
    return len(tried)


def _is_enough(state: State, waiting: list[PendingHead]) -> bool:
    """Whether all nodes together have what a gang needs: looked at before each of it is tried."""
    needed: dict[str, int] = {}
    for head in waiting:
        for resource, amount in head.workload.policy.ask.resources:
            needed[resource] = needed.get(resource, 0) + amount
    fleet = state.fleet
    return all(int(fleet.free(name)[fleet.open].sum()) >= amount for name, amount in needed.items())


def _choose(state: State, head: PendingHead, allowed: Mask | None) -> Choice:
    """The node for an instance as things stand."""
    fleet, ask = state.fleet, head.workload.policy.ask
    strategy = strategy_of(state, ask)
    if strategy.typical and state.now_ms >= state.meta.typical_due_ms:
        learn_typical(state)
    last = _last_row(fleet, state.meta.cursors.get(strategy.name, "")) if strategy.cursor else -1
    drawn = _random_number(state.settings.seed, state.serial) if strategy.chance else 0
    return choose(fleet, state.score_caches, ask, strategy, _subjects(head.workload), last, drawn, allowed)


def strategy_of(state: State, ask: Ask) -> Strategy:
    """The strategy an ask is placed by: its own, or that of the one pool it names, or the server's."""
    name = ask.strategy
    if not name and len(ask.pools) == 1 and ask.pools[0] in state.pools:
        name = state.pools[ask.pools[0]].strategy
    return strategy_named(name or state.settings.strategy)


def _devices_and_ports(fleet: Fleet, ask: Ask, choice: Choice) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The devices and ports an instance gets on the node chosen for it."""
    devices = choice.strategy.devices(fleet, ask, choice.row) if ask.gpu_count else ()
    return devices, ports_of(fleet, ask, choice.row) if ask.ports else ()


def _assign(state: State, out: Step, line: EquivalenceClass, head: PendingHead, choice: Choice, now: int) -> None:
    """Put an instance on the node chosen for it."""
    fleet, row, strategy = state.fleet, choice.row, choice.strategy
    policy = head.workload.policy
    instance = _instance_of(state, head)
    instance.decision_packed = pack_decision(_decision(fleet, choice, strategy.name))
    instance.node = fleet.names[row]
    instance.devices, instance.ports = _devices_and_ports(fleet, policy.ask, choice)
    instance.attempt += 1
    instance.token = state.next_serial()
    instance.exit_code = instance.signal = instance.log_size = None
    instance.started_ms = instance.step = 0
    if strategy.cursor:
        state.meta.cursors[strategy.name] = instance.node
        state.touch_meta()
    state.pending_preemptions.pop(instance.key, None)
    if state.backfill_reservations:
        backfill.consume_extra(state, line, instance.node, policy.ask, policy.timeout_ms, now)
    move(state, out, instance, InstanceState.PLACED, PlacedOnNode(instance.node, strategy.name), now)
    _order_run(state, out, instance, strategy.name)


def _subjects(workload: Workload) -> tuple[str, ...]:
    return selectors_of(workload.project, workload.key, workload.policy.labels)


def _order_run(state: State, out: Step, instance: Instance, by: str) -> None:
    """Order the node to run it, and tell whoever reads along how full the node is now."""
    out.order(instance.node, run_order(state, instance))
    fleet, row = state.fleet, state.fleet.row(instance.node)
    names = fleet.facts[row].resources
    room = tuple([(name, fleet.used[name].item(row), fleet.total[name].item(row)) for name in names])
    out.placed.append(Placed(instance.key, instance.node, by, room))


def _instance_of(state: State, head: PendingHead) -> Instance:
    key = head.workload.key
    if head.is_requeued:
        return state.instances[f"{key}.{head.number}"]
    progress = state.progress_of(head.workload)
    progress.placed_count = head.number + 1
    progress.counts[InstanceState.QUEUED] = progress.counts.get(InstanceState.QUEUED, 0) + 1
    story = (Transition(head.workload.submitted_ms, "", "queued", SUBMITTED, state.revision + 1),)
    instance = Instance(key, head.number, story=story, version=head.workload.version)
    state.instances[instance.key] = instance
    return instance


def _decision(fleet: Fleet, choice: Choice, strategy: str) -> Decision:
    """The node taken and the best of the others."""
    scores = choice.scores
    others = [
        best_row
        for best_row in _best_rows(scores)[: choice.eligible]
        if best_row != choice.row and scores.item(best_row) >= 0
    ]
    rows = [choice.row, *others[: CANDIDATES_MAX - 1]]
    candidates = tuple([(fleet.names[row], scores.item(row)) for row in rows])
    return Decision(strategy, choice.eligible, len(scores), candidates)


def _best_rows(scores: Scores) -> list[int]:
    """The best rows, of equal ones the first by name."""
    if len(scores) <= SMALL_FLEET:
        values = scores.tolist()
        return sorted(range(len(values)), key=values.__getitem__, reverse=True)[:CANDIDATES_MAX]
    left = scores.copy()
    best: list[int] = []
    for _ in range(CANDIDATES_MAX):  # some scans are cheaper than sorting
        best.append(int(left.argmax()))
        left[best[-1]] = NOT_ELIGIBLE
    return best


def _last_row(fleet: Fleet, name: str) -> int:
    """Where the node chosen last stands, or stood: if it is gone, the row before its place."""
    if not name:
        return -1
    row = fleet.row(name)
    return row if row >= 0 else bisect_left(fleet.names, name) - 1


def _random_number(seed: int, serial: int) -> int:
    """A number by chance for this placement: splitmix64 of the seed and the serial, so a replay draws the same."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (serial + 1) * 0xD1B54A32D192ED03) & MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64
    return mixed ^ (mixed >> 31)
