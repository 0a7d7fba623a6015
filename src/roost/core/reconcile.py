"""Services on their way to what they should be: replaced by a new version, moved off a node, or fewer than before.

Within the limits of the workload: never fewer available than its floor because of us, never more than its count and its
surge. What needs no restart is taken over where it runs. An instance keeps its index; those beyond the count are extra:
they stand in while others are replaced, and retire when nobody needs them any more.
"""

from typing import NamedTuple

from roost.core.effects import Forgotten, Step
from roost.core.move import move, stop, tell
from roost.core.operate import frozen
from roost.core.retry import may_still_run
from roost.core.rollout import GOING, advance, cap_of, give_up_ms
from roost.core.sameness import needs_restart, rule_breakers
from roost.core.state import State
from roost.core.update import go_back
from roost.core.versions import instances_of, make_instance, shrink
from roost.model.instance import Instance
from roost.model.states import FINISHED, HOLDING
from roost.model.workload import DEFAULT_UPDATE, Workload

REPLICAS_PER_MS = 20  # a look at 20 replicas takes some 10 us: looking is a hundredth of the time at most

NOT_MISSED = ("succeeded", "cancelled")  # who ended so is counted on by nobody any more


class Standing(NamedTuple):
    """How a service stands."""

    everyone: list[Instance]
    available: set[int]  # indexes; only ever asked for members
    soon_ms: list[int]  # when others will be available, if they stay ready
    reasons: dict[int, str]  # index -> why it has to go from where it is, or be made anew
    done: int  # how many of the present version are available, or over for good, of those that count


class Margin:
    """How many more there are than have to be: of those that are available, and of all that are ready."""

    def __init__(self, standing: Standing, floor: int) -> None:
        self._available = standing.available
        self._spare = len(standing.available) - floor
        self._spare_ready = self._spare + len(standing.soon_ms)

    def spares(self, instance: Instance) -> bool:
        """Whether one can go; it is gone then. One that is not ready is missed by nobody."""
        if not instance.serving_ms:
            return True
        counts = instance.index in self._available
        if (self._spare if counts else self._spare_ready) <= 0:
            return False
        self._spare -= counts
        self._spare_ready -= 1
        return True


def reconcile(state: State, out: Step, now: int) -> None:
    """Look at every service that is restless and has changed since. Large ones are not looked at all the time."""
    if not state.unsettled or frozen(state):
        return
    keys, state.unsettled = list(state.unsettled), {}
    for key in keys:
        workload = state.workloads.get(key)
        if workload is None or workload.finished_ms or workload.policy.kind == "job":
            if workload is not None and workload.policy.kind != "job":
                _settle(state, out, workload, now)  # the last to end may be one that stood in
            state.restless.pop(key, None)
            continue
        due_ms = state.restless.get(key, 0) + workload.count // REPLICAS_PER_MS
        if due_ms > now:
            state.at(due_ms, "settle", key)
            continue
        state.restless[key] = now
        _settle(state, out, workload, now)
        state.unsettled.pop(key, None)  # what it did itself


def _settle(state: State, out: Step, workload: Workload, now: int) -> None:
    update = workload.policy.update or DEFAULT_UPDATE
    if workload.rest or workload.finished_ms:  # it is being stopped: nobody is replaced, and who stood in is forgotten
        standing = _look(state, workload, instances_of(state, workload), now)
        _retire(state, out, workload, standing, 0, Margin(standing, 0), now)
        return
    standing = _look(state, workload, _take_over_in_place(state, workload, now), now)
    back = advance(state, workload, standing.done, now)
    if back is not None:
        _settle(state, out, go_back(state, out, workload, *back, now), now)  # once: that one does not go back again
        return
    cap = cap_of(workload)  # how far it may go has changed with how far it came
    floor = workload.count - _ended(standing, workload) - update.unavailable_of(workload.count)
    margin = Margin(standing, floor)
    waiting = 0  # how many have to go and may not yet
    for instance in standing.everyone:
        reason = standing.reasons.get(instance.index)
        if reason is None or (instance.version != workload.version and instance.index >= cap):
            continue
        if margin.spares(instance):
            _replace(state, out, workload, instance, reason, now)
        else:
            waiting += 1
    wanted = 0
    if waiting or _is_rolling(workload):
        wanted = min(update.surge_of(workload.count), waiting + _away(standing, workload))
    _retire(state, out, workload, standing, wanted, margin if not waiting else None, now)
    _call_in(state, workload, wanted, now)
    _next_look(state, workload, standing, now)


def _look(state: State, workload: Workload, everyone: list[Instance], now: int) -> Standing:
    healthy_after_ms = (workload.policy.update or DEFAULT_UPDATE).healthy_after_ms
    version, count, cap = workload.version, workload.count, cap_of(workload)
    available: set[int] = set()
    soon_ms: list[int] = []
    reasons: dict[int, str] = {}
    leave: dict[str, str] = {}  # of each node, asked once
    done = 0
    for each in everyone:
        index = each.index
        if each.serving_ms:
            when_ms = each.serving_ms + (healthy_after_ms if each.version == version else 0)  # the others were good
            if when_ms <= now:
                available.add(index)
            else:
                soon_ms.append(when_ms)
        if index >= count or each.state == "stopping":
            continue
        if each.version == version:
            done += index in available or each.state in FINISHED
        elif may_still_run(state, each):
            done += 1  # nobody can tell it anything
            continue
        elif index < cap:
            reasons[index] = f"updated to version {version}"
            continue
        if each.state in HOLDING:
            if each.node not in leave:
                leave[each.node] = leaving(state, each.node)
            if leave[each.node]:
                reasons[index] = leave[each.node]
    return Standing(everyone, available, soon_ms, reasons, done)


def leaving(state: State, name: str) -> str:
    """Why services have to leave a node, within their limits; empty: they may stay."""
    node = state.nodes[name]
    if node.draining:
        return f"node {name} is draining"
    pool = state.pools.get(node.facts.pool)
    if pool is not None and pool.status == "draining":
        return f"pool {pool.name} is draining: {pool.reason}" if pool.reason else f"pool {pool.name} is draining"
    return ""


def _replace(state: State, out: Step, workload: Workload, instance: Instance, reason: str, now: int) -> None:
    """Stop one so that it starts again, elsewhere or as the new version; one that does not run changes at once."""
    if instance.state in HOLDING:
        stop(state, out, instance, reason, now, moving=True)
        return
    if instance.state in FINISHED:
        move(state, out, instance, "queued", reason, now)
        instance.node, instance.finished_ms = "", 0
    instance.version = workload.version
    instance.failures = instance.losses = 0
    instance.ready_ms = state.settled_ms() if workload.adopted and state.settled_ms() > now else 0
    state.touch_instance(instance)
    if instance.ready_ms:  # an agent that has not spoken yet may be running a later attempt
        state.at(instance.ready_ms, "ready", instance.key)
    else:
        state.queue.add_again(workload, instance.index)


def _take_over_in_place(state: State, workload: Workload, now: int) -> list[Instance]:
    """Let those be of the present version for whom nothing changes but words. Rules that changed are looked at."""
    everyone = instances_of(state, workload)
    older: dict[int, list[Instance]] = {}
    for each in everyone:
        if each.version != workload.version:
            older.setdefault(each.version, []).append(each)
    for instances in older.values():
        old = state.spec_of(instances[0])
        if needs_restart(old, workload):
            continue
        stays = [each for each in instances if each.state != "stopping"]
        breakers = rule_breakers(state, old, workload, [each for each in stays if each.state in HOLDING])
        for each in stays:
            if each.index not in breakers and each.state not in FINISHED:
                _relabel(state, old, workload, each, now)
    return everyone


def _relabel(state: State, old: Workload, workload: Workload, instance: Instance, now: int) -> None:
    if instance.state in HOLDING:
        state.vacate(old, instance)
    instance.version = workload.version
    if instance.state in HOLDING:
        state.occupy(workload, instance)
        tell(instance, instance.state, f"taken over into version {workload.version}", now, state.revision + 1)
    elif not instance.waits:
        state.queue.add_again(workload, instance.index)
    state.touch_instance(instance)


def _ended(standing: Standing, workload: Workload) -> int:
    """How many nobody counts on any more: their work is done, or somebody has stopped them."""
    over = [each.index for each in standing.everyone if each.state in NOT_MISSED and each.index < workload.count]
    return sum(index not in standing.reasons for index in over)  # the others are about to come back


def _is_rolling(workload: Workload) -> bool:
    return workload.rollout is not None and workload.rollout.state == "rolling"


def _away(standing: Standing, workload: Workload) -> int:
    """As long as they are away, who stands in for them is needed."""
    return sum(each.index < workload.count and each.index not in standing.available for each in standing.everyone)


def _call_in(state: State, workload: Workload, wanted: int, now: int) -> None:
    """Let extra instances stand in for those that are about to be replaced."""
    if wanted:
        for index in range(state.begun(workload), workload.count):  # who comes after them would be passed over
            make_instance(state, workload, index, "submitted", now)
    for index in range(workload.count, workload.count + wanted):
        if f"{workload.key}.{index}" not in state.instances:
            make_instance(state, workload, index, "stands in while others are replaced", now)


def _retire(
    state: State, out: Step, workload: Workload, standing: Standing, wanted: int, margin: Margin | None, now: int
) -> None:
    """Stop who is beyond the count and not needed; forget who has ended. The last ones go first."""
    for instance in reversed([each for each in standing.everyone if each.index >= workload.count]):
        if instance.index < workload.count + wanted and instance.version == workload.version:
            if instance.state not in FINISHED:
                continue
        if instance.state in HOLDING and instance.state != "stopping":
            if instance.serving_ms and (margin is None or not margin.spares(instance)):
                continue
            stop(state, out, instance, f"beyond its count of {workload.count}", now)
        elif instance.state == "stopping" and instance.moving:
            instance.moving = False
            state.touch_instance(instance)
        elif instance.state == "queued":
            move(state, out, instance, "cancelled", f"beyond its count of {workload.count}", now)
        if instance.state in FINISHED and not may_still_run(state, instance):
            _forget(state, out, workload, instance)


def _forget(state: State, out: Step, workload: Workload, instance: Instance) -> None:
    """Nobody counts on it any more: its record goes, so that its index is free."""
    progress = state.progress_of(workload)
    progress.counts[instance.state] -= 1
    if workload.finished_ms:
        state.finished_instances -= 1
    del state.instances[instance.key]
    if state.dirty.get(("instance", instance.key)) is not None:
        out.forgotten.append(Forgotten(state.last_of("instance", instance.key)))
    state.dirty["instance", instance.key] = None
    shrink(state, workload)


def _may_come_through(workload: Workload, standing: Standing) -> bool:
    """Whether a change that failed only lacks time: all are of the new version."""
    failed = workload.rollout is not None and workload.rollout.state == "failed"
    return failed and all(each.version == workload.version for each in standing.everyone)


def _next_look(state: State, workload: Workload, standing: Standing, now: int) -> None:
    """Who is done is not looked at any more; for who counts only after a while there is a timer."""
    rollout = workload.rollout
    is_going = rollout is not None and (rollout.state in GOING or _may_come_through(workload, standing))
    if not standing.reasons and state.begun(workload) <= workload.count and not is_going:
        state.restless.pop(workload.key, None)
        return
    soon_ms = standing.soon_ms
    if rollout is not None and rollout.state == "rolling":
        soon_ms = [*soon_ms, give_up_ms(state, rollout, workload.policy.update or DEFAULT_UPDATE)]
    if soon_ms:
        state.at(max(min(soon_ms), now + 1), "settle", workload.key)
