"""Rules of services, schedules, dependencies and operators switched off, one at a time; see core.py."""

from functools import partial
from typing import Any

from roost.core import timers
from roost.core.dependencies import release
from roost.core.dependencies.conditions import OPEN, SATISFIED, ConditionStatus, evaluate, evaluate_element
from roost.core.lifecycle import schedules
from roost.core.nodes import pools
from roost.core.queue import place
from roost.core.services import reconcile, rollout
from roost.core.services.reconcile import DisruptionBudget, ReplicaCounts
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.core.state.timers import TimerKind
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.workload import Workload
from roost.model.states import NodeStatus
from roost.sim.mutants import core
from roost.sim.mutants.core import Rule

mutant, without = partial(core.mutant, themes=True), partial(core.without, themes=True)
_CRON = timers.TIMERS[TimerKind.CRON]

# updates

without(
    "floors_are_not_kept",
    "What is to be replaced is stopped at once, however many are left.",
    (DisruptionBudget, "allows", lambda self, instance: True),
)


@mutant(reconcile, "_count_replicas")
def who_has_just_begun_counts(
    count: Rule, state: State, workload: Workload, replicas: list[Instance], now: int
) -> ReplicaCounts:
    """An instance of the new version counts as soon as it is ready, not after it stayed so for a while."""
    ready = {instance.index for instance in replicas if instance.ready_since_ms}
    counts: ReplicaCounts = count(state, workload, replicas, now)
    return counts._replace(available=ready)


@mutant(reconcile, "_add_surge")
def surges_have_no_limit(add_surge: Rule, state: State, workload: Workload, wanted: int, now: int) -> None:
    """More stand in for those that are replaced than may."""
    add_surge(state, workload, wanted + 2 if wanted else 0, now)


without("who_stood_in_stays", "Instances beyond the count stay.", (reconcile, "_scale_down", lambda *_: None))


@mutant(reconcile, "advance")
def what_failed_stays(_: Rule, *given: Any) -> None:
    """An update that failed does not go back by itself."""
    rollout.advance(*given)


without(
    "canaries_are_not_waited_for",
    "All others follow the canaries without a promotion.",
    *((module, "cap_of", lambda workload: workload.count) for module in (reconcile, rollout)),
)


# schedules


def _forgetful(state: State, out: Step, key: str, now: int) -> None:
    workload = state.workloads.get(key)
    before = workload.tick_ms if workload is not None else 0
    schedules.tick(state, out, key, now)
    if workload is not None and before:
        workload.tick_ms = before


without(
    "ticks_are_not_remembered",
    "A tick comes again, because it was not recorded.",
    (timers.TIMERS, TimerKind.CRON, _CRON._replace(fire=_forgetful)),
)


@mutant(schedules, "_due")
def ticks_are_not_made_up_for(due: Rule, *given: Any) -> tuple[list[int], None]:
    """A tick that was missed is forgotten without a reason."""
    return due(*given)[0][-1:], None


without(
    "schedules_are_forgotten",
    "A tick passes, and nothing happens.",
    (timers.TIMERS, TimerKind.CRON, _CRON._replace(fire=lambda *_: None)),
)
without(
    "runs_overlap",
    "A run begins though the one before has not finished.",
    (schedules, "live_runs", lambda state, key: []),
)


# order


def _if_impossible(instead: ConditionStatus) -> Rule:
    return lambda *given: instead if (status := evaluate(*given)).impossible else status


without(
    "nobody_waits_for_anybody",
    "Every dependency counts as satisfied.",
    *((release, name, lambda *_: SATISFIED) for name in ("evaluate", "evaluate_element")),
)
without(
    "elements_wait_for_the_first",
    "Each element waits for the first of the others, not for its own.",
    (release, "evaluate_element", lambda state, condition, index: evaluate_element(state, condition, 0)),
)
without(
    "however_it_ended",
    "What was to come after a success comes after any end.",
    (release, "evaluate", _if_impossible(SATISFIED)),
)
without(
    "who_waits_in_vain_waits_on", "An impossible dependency stays pending.", (release, "evaluate", _if_impossible(OPEN))
)


# operators


def _open_node(self: State, node: Node) -> None:
    in_touch = self.liveness[node.name].in_touch
    self.fleet.set_open(node.name, is_open=in_touch and node.status != NodeStatus.DRAINED, is_online=in_touch)


without("failed_pools_keep_their_work", "A failed pool keeps its work.", (pools, "_move_instance", lambda *_: None))
without(
    "closed_nodes_take_work",
    "Work goes to nodes that are cordoned, and to pools that have failed.",
    (State, "open_node", _open_node),
)
without(
    "maintenance_places_work",
    "Work begins while there is maintenance.",
    (place, "in_maintenance", lambda state: False),
)
without(
    "maintenance_gives_nodes_up",
    "Nodes are given up while there is maintenance.",
    (timers, "in_maintenance", lambda state: False),
)
