"""The placement pass: equivalence classes by priority, share and age; each placement sees those before it."""

from bisect import bisect_left
from collections import Counter
from heapq import heappop, heappush, nsmallest

from roost.core.orders import run_order
from roost.core.placement.filters import DYNAMIC
from roost.core.placement.filters.ports import ports_of
from roost.core.placement.gpu.fragmentation import learn_typical
from roost.core.placement.score_cache import NOT_ELIGIBLE, fits_when_empty
from roost.core.placement.scorers import image as image_score
from roost.core.placement.select import Choice, affinity_mask, choose, without_affinity
from roost.core.placement.strategies import Strategy, strategy_named
from roost.core.queue import backfill
from roost.core.queue.blocked import split_blocked
from roost.core.queue.fair_share import quota_excess, share_of, totals_of
from roost.core.queue.gang import pending_members
from roost.core.queue.home import PREFIX, home_class, home_mask, home_of, only_home
from roost.core.queue.preemption import could_preempt, preempt, preempt_gang
from roost.core.queue.prefill import last_prefilled, prefill_depth
from roost.core.state.allocation import Allocation, make_allocation, selectors_of
from roost.core.state.files import set_outputs
from roost.core.state.fleet import Fleet, Mask
from roost.core.state.outcome import Paced, Placed, Step
from roost.core.state.queue import EquivalenceClass, PendingHead, Queue
from roost.core.state.results import set_result
from roost.core.state.state import State, awaits_agents, in_maintenance
from roost.core.transitions import move, prefill
from roost.model.limits import CANDIDATES_MAX
from roost.model.reasons.attempts import SUBMITTED, PlacedOnNode, PlacedWithImage, Prefilled
from roost.model.reasons.subjects import InstanceRef
from roost.model.records.instance import Decision, Instance, pack_decision
from roost.model.records.workload import Ask, Workload
from roost.model.states import ALLOCATED, InstanceState, WhenFull, WorkloadKind

PREEMPTING_MAX = 16  # preemption searches in one pass, some milliseconds each; other classes follow in the next one
CLASSES_MAX = 1_250  # whose heads are looked up in one pass, 6 us each: 8 ms
PLACEMENT_UNITS = 5  # of work
CLASS_UNITS = 2  # of work to find that a class fits nowhere
MASK_64 = (1 << 64) - 1
ROWS_MAX = 32  # changed rows looked at one by one, half a microsecond each: a whole shortlist costs more than all

#: Priority, share of the project, rank and index order the heads; the rank has a serial, so no two are equal.
Turn = tuple[tuple[int, int, int, int, int], EquivalenceClass, PendingHead]


def place(state: State, out: Step, now: int) -> Paced[bool]:
    """Place what fits. Returns True if there is more to place than one pass may do."""
    if in_maintenance(state):
        return False
    if awaits_agents(state):
        state.check_queue_at(state.adoption_deadline_ms())
        return False
    fleet, queue = state.fleet, state.queue
    backfill.drop_stale(state)
    lines = [line for line in queue.due(fleet) if not line.is_blocked(fleet)]
    is_whole = len(lines) == len(queue.classes)
    lines, blocked = split_blocked(state, lines, now)
    is_more = len(lines) > CLASSES_MAX
    if is_more:
        lines = nsmallest(CLASSES_MAX, lines, key=lambda line: line.urgency)
        is_whole = False
    totals = totals_of(fleet) if len({line.project for line in lines}) > 1 else {}
    heads: list[Turn] = []
    for line in lines:
        _push_head(state, heads, line, totals)
    placed, tries, most = 0, PREEMPTING_MAX, out.limit(state.settings.step_units)
    first: EquivalenceClass | None = None  # the most urgent class that does not fit
    while heads:
        if placed >= state.settings.placements_max or out.work >= most or not tries:
            queue.recheck_next_pass()
            return True
        order, line, head = heappop(heads)
        if state.head_of(line) != head:  # it was in two classes, and has been placed from the other
            _push_head(state, heads, line, totals)
            continue
        if totals and order[1] != (share := share_of(state, line.project, totals)):
            heappush(heads, ((order[0], share, *order[2:]), line, head))  # its project has got more since
            continue
        if line.is_gang:
            done = yield from _place_gang(state, out, line, now)
        else:
            done = not _is_still_blocked(fleet, line) and _place_head(state, out, line, head, now)
        if done:
            placed += done
            yield PLACEMENT_UNITS * done
            backfill.release(state, line)
            _push_head(state, heads, line, totals)
        elif (line.is_gang or not line.has_isolated(head)) and not line.unsatisfiable:
            first = first or line
            out.work += CLASS_UNITS
            is_whole = is_whole and line.project == first.project
            if not line.is_gang:
                tries -= yield from _preempt_or_reserve(state, out, line, head, now)
            yield CLASS_UNITS
    if is_whole and state.run_lengths_ms and (out.placed or out.activated):
        _prefill_most_urgent(state, out, [*([first] if first is not None else []), *blocked], now)
    if is_more:
        queue.recheck_next_pass()
    return is_more or queue.is_due(fleet)


def _prefill_most_urgent(state: State, out: Step, waiting: list[EquivalenceClass], now: int) -> None:
    """Prefill the most urgent class, if no other project has pending instances."""
    first = min(waiting, key=lambda line: line.urgency, default=None)
    if first is not None and all(line.project == first.project for line in waiting):
        _prefill_class(state, out, first, now)


def _prefill_class(state: State, out: Step, line: EquivalenceClass, now: int) -> None:
    """Prefill behind the short runs of a class that have just got an allocation, one behind each in turn."""
    depth = prefill_depth(state, line) if not quota_excess(state, line.project, line.ask, 0) else 0
    if not depth:
        return
    heads = [*out.activated, *(state.instances[placed.instance] for placed in out.placed)]
    by_token = {instance.token: instance for instance in heads}  # one that ended at once may have been placed again
    chains = [
        last_prefilled(state, instance)
        for instance in by_token.values()
        if instance.state in ALLOCATED
        and not instance.prefilled_behind
        and Queue.key_of(state.spec_of(instance)) == line.key
    ]
    chains = [
        (last, behind)
        for last, behind in chains
        if state.spec_of(last).policy.kind == WorkloadKind.JOB and last.state != InstanceState.STOPPING
    ]
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
    """Whether an instance may go where another is, and is treated like it when the node is lost."""
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
    social = affinity_mask(fleet, line.ask, _selectors(workload), fleet.open)
    return social is None or bool(social[row])


def _prefill_behind(state: State, out: Step, head: PendingHead, last: Instance, now: int) -> Instance:
    instance = _begin_attempt(state, head, last.node, last.decision_packed)
    prefill(state, instance, last)
    move(state, out, instance, InstanceState.PLACED, Prefilled(instance.node, InstanceRef.of(last.key)), now)
    _order_run(state, out, instance, state.fleet.row(last.node), "standing ahead")
    return instance


def _push_head(state: State, heads: list[Turn], line: EquivalenceClass, totals: dict[str, int]) -> None:
    head = state.head_of(line)
    if head is None:
        state.queue.forget(line)
        backfill.release(state, line)
        return
    share = share_of(state, line.project, totals) if totals else 0
    heappush(heads, ((-head.workload.policy.priority, share, *head.rank, head.number), line, head))


def _preempt_or_reserve(state: State, out: Step, line: EquivalenceClass, head: PendingHead, now: int) -> Paced[bool]:
    """Preempt for a head that fits nowhere, or make a backfill reservation for it.

    Returns True if a preemption search ran (it is expensive).
    """
    may_stop = head.key not in state.pending_preemptions and could_preempt(state, head.workload)
    if not may_stop and not backfill.wants_reservation(state, line, head, now):
        return False
    if quota_excess(state, line.project, line.ask):
        return False
    fits = fits_when_empty(state.fleet, without_affinity(line.ask))
    kept = backfill.unreserved_mask(state, line, head.workload, now)
    social = affinity_mask(state.fleet, line.ask, _selectors(head.workload), fits)
    for mask in (kept, social):
        fits = fits if mask is None else fits & mask
    fits = only_home(state.fleet, line, fits)
    if may_stop:
        may_stop = yield from preempt(state, out, line, head, fits, now)
    if backfill.wants_reservation(state, line, head, now):
        backfill.reserve_node(state, line, head, fits, now)
    return may_stop


def _is_still_blocked(fleet: Fleet, line: EquivalenceClass) -> bool:
    """Whether a class that fitted nowhere fits nowhere now either: only the rows that changed since could take it."""
    rows = fleet.changed_since(line.position) if line.layout == fleet.layout else None
    if rows is None or len(rows) > ROWS_MAX:
        return False
    if any(all(node_filter.allows(fleet, line.ask, row) for node_filter in DYNAMIC) for row in rows):
        return False
    line.block(fleet, by_nodes=True)
    return True


def _place_head(state: State, out: Step, line: EquivalenceClass, head: PendingHead, now: int) -> bool:
    """Place one instance. One that only affinity keeps out leaves the class to the others."""
    if quota_excess(state, line.project, line.ask):
        line.block(state.fleet, by_nodes=False)
        return False
    home = home_of(state, head)
    own_class = home_class(head.workload, home)
    if own_class != (line.isolated if line.isolated.startswith(PREFIX) else ""):
        state.queue.isolate(line, head, own_class)
        return False
    allowed = backfill.unreserved_mask(state, line, head.workload, now)
    choice = _choose(state, head, home_mask(state.fleet, home, allowed))
    if choice.row < 0 and home and not head.workload.policy.is_homebound:
        choice = _choose(state, head, allowed)
    line.unsatisfiable = choice.unsatisfiable
    if choice.row >= 0:
        _assign(state, out, line, head, choice, now)
        line.take(head)
        return True
    line.block(state.fleet, by_nodes=True)
    if choice.blocked_by_affinity and not line.isolated and line.ask.affinity is None:
        state.queue.isolate(line, head, head.workload.key)
    return False


def _place_gang(state: State, out: Step, line: EquivalenceClass, now: int) -> Paced[int]:
    """Place all of a gang or none: each member is tried first, with all the others before it."""
    fleet = state.fleet
    line.block(fleet, by_nodes=False)
    waiting = pending_members(state, line)
    tried: list[tuple[PendingHead, Choice, Allocation]] = []
    serial, reservations = state.serial, dict(state.backfill_reservations)
    for head in waiting if _is_enough(state, waiting) else ():
        workload, policy = head.workload, head.workload.policy
        allowed = backfill.unreserved_mask(state, line, workload, now)
        choice = _choose(state, head, allowed) if not quota_excess(state, line.project, policy.ask) else None
        if choice is None or choice.row < 0:
            break
        devices, ports = _devices_and_ports(fleet, policy.ask, choice)
        held = make_allocation(workload.project, workload.key, policy, devices, ports)
        tried.append((head, choice, held))
        fleet.take(fleet.names[choice.row], held, is_trial=True)
        backfill.consume_extra(state, line, fleet.names[choice.row], policy.ask, policy.timeout_ms, now)
        state.charge(workload.project, policy.ask, 1)
        state.serial += 1  # the random number of a placement comes from the serial
        yield PLACEMENT_UNITS
    state.serial = serial
    state.backfill_reservations.update(reservations)
    for head, choice, held in reversed(tried):
        fleet.take(fleet.names[choice.row], held, -1, is_trial=True)
        state.charge(head.workload.project, head.workload.policy.ask, -1)
    if len(tried) < len(waiting):
        yield from preempt_gang(state, out, line, waiting, now)
        backfill.reserve_for_gang(state, line, waiting, now)
        return 0
    for head, choice, _ in tried:
        _assign(state, out, line, head, choice, now)
        yield PLACEMENT_UNITS
    return len(tried)


def _is_enough(state: State, waiting: list[PendingHead]) -> bool:
    """Whether all nodes together have what a gang needs: a cheap check before each member is tried."""
    needed: Counter[str] = Counter()
    for head in waiting:
        for resource, amount in head.workload.policy.ask.resources:
            needed[resource] += amount
    fleet = state.fleet
    return all(int(fleet.free(name)[fleet.open].sum()) >= amount for name, amount in needed.items())


def _choose(state: State, head: PendingHead, allowed: Mask | None) -> Choice:
    fleet, ask = state.fleet, head.workload.policy.ask
    strategy = _strategy_of(state, ask)
    if strategy.typical and state.now_ms >= state.meta.typical_due_ms:
        learn_typical(state)
    last = _last_row(fleet, state.meta.cursors.get(strategy.name, "")) if strategy.cursor else -1
    drawn = _random_number(state.settings.seed, state.serial) if strategy.chance else 0
    selectors = _selectors(head.workload) if ask.affinity is not None or fleet.topology.anti_affinity else ()
    return choose(fleet, state.score_caches, ask, strategy, selectors, last, drawn, allowed)


def _strategy_of(state: State, ask: Ask) -> Strategy:
    """The strategy of the ask, or of the one pool it names, or of the server."""
    name = ask.strategy
    if not name and len(ask.pools) == 1 and ask.pools[0] in state.pools:
        name = state.pools[ask.pools[0]].strategy
    return strategy_named(name or state.settings.strategy)


def _devices_and_ports(fleet: Fleet, ask: Ask, choice: Choice) -> tuple[tuple[int, ...], tuple[int, ...]]:
    devices = choice.strategy.devices(fleet, ask, choice.row) if ask.gpu_count else ()
    return devices, ports_of(fleet, ask, choice.row) if ask.ports else ()


def _assign(state: State, out: Step, line: EquivalenceClass, head: PendingHead, choice: Choice, now: int) -> None:
    fleet, strategy, policy = state.fleet, choice.strategy, head.workload.policy
    node = fleet.names[choice.row]
    decision = _decision(fleet, choice, policy.ask)
    instance = _begin_attempt(state, head, node, pack_decision(decision))
    instance.devices, instance.ports = _devices_and_ports(fleet, policy.ask, choice)
    if strategy.cursor:
        state.meta.cursors[strategy.name] = node
        state.touch_meta()
    if state.pending_preemptions:
        state.pending_preemptions.pop(instance.key, None)
    if state.backfill_reservations:
        backfill.consume_extra(state, line, node, policy.ask, policy.timeout_ms, now)
    placed = PlacedWithImage if node in decision.with_image else PlacedOnNode
    move(state, out, instance, InstanceState.PLACED, placed(node, strategy.name), now)
    _order_run(state, out, instance, choice.row, strategy.name)


def _selectors(workload: Workload) -> tuple[str, ...]:
    return selectors_of(workload.project, workload.key, workload.policy.labels)


def _order_run(state: State, out: Step, instance: Instance, row: int, by: str) -> None:
    out.order(instance.node, run_order(state, instance))
    used, total = state.fleet.used, state.fleet.total
    resources = [(name, used[name].item(row), total[name].item(row)) for name in state.fleet.facts[row].resources]
    out.placed.append(Placed(instance.key, instance.node, by, tuple(resources)))


def _begin_attempt(state: State, head: PendingHead, node: str, decision: bytes) -> Instance:
    workload, index = head.workload, head.number
    if head.is_requeued:
        instance = state.instances[head.key]
        instance.devices = instance.ports = ()
        instance.image = ""
        instance.exit_code = instance.signal = instance.log_size = instance.stderr_size = None
        instance.started_ms = instance.step = 0
        instance.usage = None
        set_result(state, instance, None)
        set_outputs(state, instance, None)
    else:
        since_ms = workload.released_ms if workload.approval else workload.submitted_ms
        instance = state.new_instance(workload, index, workload.approval or SUBMITTED, since_ms)
    instance.node, instance.decision_packed = node, decision
    instance.attempt = max(instance.attempt or workload.attempts_gone, workload.attempts_lost) + 1
    instance.token = state.next_serial()
    return instance


def _decision(fleet: Fleet, choice: Choice, ask: Ask) -> Decision:
    """The node taken and the best of the others; of equal ones the first by name."""
    left, row = choice.scores.copy(), choice.row
    score = left.item(row)  # of a gang, members tried later may have made it ineligible
    candidates = [(fleet.names[row], score)]
    while len(candidates) < CANDIDATES_MAX:
        left[row] = NOT_ELIGIBLE
        row = int(left.argmax())  # some scans are cheaper than sorting
        if (score := left.item(row)) < 0:
            break
        candidates.append((fleet.names[row], score))
    nodes = [node for node, _ in candidates if ask.image]
    with_image = tuple([node for node in nodes if image_score.score_one(fleet, ask, fleet.row(node))])
    return Decision(choice.strategy.name, choice.eligible, len(left), tuple(candidates), with_image)


def _last_row(fleet: Fleet, name: str) -> int:
    """The row of the node chosen last; if it is gone, the row before its place."""
    if not name:
        return -1
    row = fleet.row(name)
    return row if row >= 0 else bisect_left(fleet.names, name) - 1


def _random_number(seed: int, serial: int) -> int:
    """The random number of this placement: splitmix64 of the seed and the serial, so a replay draws the same."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (serial + 1) * 0xD1B54A32D192ED03) & MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64
    return mixed ^ (mixed >> 31)
