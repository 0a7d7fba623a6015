"""Who goes where: line by line in order of priority and age, each placement seeing the ones before it."""

from bisect import bisect_left
from heapq import heapify, heappop, heappush

from roost.core.assign import run_order
from roost.core.choose import Choice, choose
from roost.core.claim import subjects_of
from roost.core.effects import Placed, Step
from roost.core.explain import blockers_of
from roost.core.filters import DYNAMIC
from roost.core.filters.ports import ports_of
from roost.core.fleet import Fleet, Ints
from roost.core.move import finish_if_over, move
from roost.core.order import Line, Waiting
from roost.core.shortlist import NOT_ELIGIBLE
from roost.core.state import State
from roost.core.strategies import STRATEGIES
from roost.model.instance import Decision, Instance, Move, pack_decision
from roost.model.limits import CANDIDATES_MAX
from roost.model.workload import Workload

MASK_64 = (1 << 64) - 1
ROWS_MAX = 32  # changed rows looked at one by one, half a microsecond each: a whole shortlist costs more than all
SMALL_FLEET = 32  # below this, sorting in Python beats numpy's fixed costs


def place(state: State, out: Step, now: int) -> bool:
    """Place what fits. True: there is more to place than one pass may do."""
    fleet, queue = state.fleet, state.queue
    heads: list[tuple[int, int, Line, Waiting]] = []  # an age is nobody else's, so lines are never compared
    for line in queue.due(fleet.freed):
        if line.blocked_at == fleet.freed:
            continue
        head = line.head(state)
        if head is None:
            queue.forget(line)
        else:
            heads.append((-line.priority, head.serial, line, head))
    heapify(heads)
    placed = 0
    while heads:
        if placed >= state.settings.placements_max:
            queue.look_again()
            return True
        _, _, line, head = heappop(heads)
        if _is_still_blocked(fleet, line) or not _place_head(state, out, line, head, now):
            line.block(fleet)
            continue
        placed += 1
        line.take(head)
        following = line.head(state)
        if following is None:
            queue.forget(line)
        else:
            heappush(heads, (-line.priority, following.serial, line, following))
    return False


def reject_waiting(state: State, out: Step, now: int) -> None:
    """Workloads that do not want to wait end here if they were not placed whole."""
    for key in state.rejectable:
        workload = state.workloads.get(key)
        if workload is not None and state.has_fresh(workload):
            why = blockers_of(state, workload.policy.ask, _subjects(workload))
            workload.rest, workload.cause = "rejected", f"{why.code}: {why.words()}"
            state.touch_workload(workload)
            finish_if_over(state, workload, now)
    state.rejectable.clear()


def _is_still_blocked(fleet: Fleet, line: Line) -> bool:
    """Whether a line that fitted nowhere fits nowhere now either: only the rows that changed since could take it."""
    rows = fleet.changed_since(line.position) if line.layout == fleet.layout else None
    if rows is None or len(rows) > ROWS_MAX:
        return False
    return not any(all(each.allows(fleet, line.ask, row) for each in DYNAMIC) for row in rows)


def _place_head(state: State, out: Step, line: Line, head: Waiting, now: int) -> bool:
    fleet = state.fleet
    if not len(fleet):
        return False
    workload, ask = head.workload, line.ask
    strategy = STRATEGIES[ask.strategy or state.settings.strategy]
    last = _last_row(fleet, state.meta.cursors.get(strategy.name, "")) if strategy.cursor else -1
    drawn = _drawn(state.settings.seed, state.serial) if strategy.chance else 0
    choice = choose(fleet, state.shortlists, ask, strategy, _subjects(workload), last, drawn)
    row = choice.row
    if row < 0:
        return False
    instance = _instance_of(state, head)
    instance.decided = pack_decision(_decision(fleet, choice, strategy.name))
    instance.node = fleet.names[row]
    instance.devices = strategy.devices(fleet, ask, row) if ask.gpu_count else ()
    instance.ports = ports_of(fleet, ask, row) if ask.ports else ()
    instance.attempt += 1
    instance.token = state.next_serial()
    instance.exit_code = instance.signal = None
    instance.started_ms = instance.step = 0
    if strategy.cursor:
        state.meta.cursors[strategy.name] = instance.node
        state.touch_meta()
    move(state, out, instance, "placed", f"on {instance.node} by {strategy.name}", now)
    out.order(instance.node, run_order(state, instance))
    names = fleet.facts[row].resources
    room = tuple([(name, fleet.used[name].item(row), fleet.total[name].item(row)) for name in names])
    out.placed.append(Placed(instance.key, instance.node, strategy.name, room))
    return True


def _subjects(workload: Workload) -> tuple[str, ...]:
    return subjects_of(workload.project, workload.key, workload.policy.labels)


def _instance_of(state: State, head: Waiting) -> Instance:
    key = head.workload.key
    if head.again:
        return state.instances[f"{key}.{head.number}"]
    progress = state.progress_of(head.workload)
    progress.begun = head.number + 1
    progress.counts["queued"] = progress.counts.get("queued", 0) + 1
    story = (Move(head.workload.submitted_ms, "queued", "submitted", state.revision + 1),)
    instance = state.instances[f"{key}.{head.number}"] = Instance(key, head.number, story=story)
    return instance


def _decision(fleet: Fleet, choice: Choice, strategy: str) -> Decision:
    """The node taken and the best of the others."""
    scores = choice.scores
    others = [each for each in _best_rows(scores)[: choice.eligible] if each != choice.row and scores.item(each) >= 0]
    rows = [choice.row, *others[: CANDIDATES_MAX - 1]]
    candidates = tuple([(fleet.names[each], scores.item(each)) for each in rows])
    return Decision(strategy, choice.eligible, len(scores), candidates)


def _best_rows(scores: Ints) -> list[int]:
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


def _drawn(seed: int, serial: int) -> int:
    """A number by chance for this placement: splitmix64 of the seed and the serial, so a replay draws the same."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (serial + 1) * 0xD1B54A32D192ED03) & MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64
    return mixed ^ (mixed >> 31)
