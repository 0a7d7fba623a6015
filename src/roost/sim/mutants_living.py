"""Rules of work over time switched off, one at a time; see mutants.py."""

from typing import Any

from roost.core import after, cron, expire, place, pools, reconcile, rollout
from roost.core.effects import Step
from roost.core.reconcile import Margin, Standing
from roost.core.state import State
from roost.core.verdict import HOLDS, OPEN, Verdict, judge, judge_element
from roost.model.instance import Instance
from roost.model.node import Node
from roost.model.workload import After, Workload
from roost.sim.mutants import Patch, mutant

# updates


@mutant
def floors_are_not_kept() -> list[Patch]:
    """Whoever is to be replaced is stopped at once, however many are left."""
    return [(Margin, "spares", lambda self, instance: True)]


@mutant
def who_has_just_begun_counts() -> list[Patch]:
    """An instance of the new version counts as soon as it is ready, not after it stayed so for a while."""
    look = reconcile._look

    def hasty(state: State, workload: Workload, everyone: list[Instance], now: int) -> Standing:
        ready = {each.index for each in everyone if each.serving_ms}
        return look(state, workload, everyone, now)._replace(available=ready)

    return [(reconcile, "_look", hasty)]


@mutant
def surges_have_no_limit() -> list[Patch]:
    """More stand in for those that are replaced than may."""
    call_in = reconcile._call_in

    def generous(state: State, workload: Workload, wanted: int, now: int) -> None:
        call_in(state, workload, wanted + 2 if wanted else 0, now)

    return [(reconcile, "_call_in", generous)]


@mutant
def who_stood_in_stays() -> list[Patch]:
    """Those beyond the count are never stopped."""
    return [(reconcile, "_retire", lambda *_: None)]


@mutant
def what_failed_stays() -> list[Patch]:
    """An update that failed does not go back by itself."""
    advance = rollout.advance

    def stubborn(*given: Any) -> None:
        advance(*given)

    return [(reconcile, "advance", stubborn)]


@mutant
def canaries_are_not_waited_for() -> list[Patch]:
    """All others follow the canaries without a word."""

    def all_of_it(workload: Workload) -> int:
        return workload.count

    return [(reconcile, "cap_of", all_of_it), (rollout, "cap_of", all_of_it)]


# schedules


@mutant
def ticks_are_not_remembered() -> list[Patch]:
    """A tick comes again: nobody notes that it was dealt with."""

    def forgetful(state: State, out: Step, key: str, now: int) -> None:
        workload = state.workloads.get(key)
        before = workload.tick_ms if workload is not None else 0
        cron.tick(state, out, key, now)
        if workload is not None and before:
            workload.tick_ms = before

    return [(expire.WAKERS, "cron", forgetful)]


@mutant
def ticks_are_not_made_up_for() -> list[Patch]:
    """What was missed is forgotten without a word."""
    due = cron._due

    def silent(*given: Any) -> tuple[list[int], list[str]]:
        return due(*given)[0][-1:], []

    return [(cron, "_due", silent)]


@mutant
def schedules_are_forgotten() -> list[Patch]:
    """A tick passes, and nothing happens."""
    return [(expire.WAKERS, "cron", lambda *_: None)]


@mutant
def runs_overlap() -> list[Patch]:
    """A run begins though the one before is not over."""
    return [(cron, "live_runs", lambda state, key: [])]


# order


@mutant
def nobody_waits_for_anybody() -> list[Patch]:
    """Whatever is to come first counts as done."""
    return [(after, "judge", lambda *_: HOLDS), (after, "judge_element", lambda *_: HOLDS)]


@mutant
def elements_wait_for_the_first() -> list[Patch]:
    """Each element waits for the first of the others, not for its own."""

    def first(state: State, condition: After, index: int) -> Verdict:
        return judge_element(state, condition, 0)

    return [(after, "judge_element", first)]


@mutant
def however_it_ended() -> list[Patch]:
    """What was to come after a success comes after any end."""

    def lenient(*given: Any) -> Verdict:
        verdict = judge(*given)
        return HOLDS if verdict.never else verdict

    return [(after, "judge", lenient)]


@mutant
def who_waits_in_vain_waits_on() -> list[Patch]:
    """Nobody is told that what it waits for can never come."""

    def hopeful(*given: Any) -> Verdict:
        verdict = judge(*given)
        return OPEN if verdict.never else verdict

    return [(after, "judge", hopeful)]


# operators


@mutant
def failed_pools_keep_their_work() -> list[Patch]:
    """What runs in a pool that has failed stays there."""
    return [(pools, "_send_away", lambda *_: None)]


@mutant
def closed_nodes_take_work() -> list[Patch]:
    """Work goes to nodes that are cordoned, and to pools that have failed."""

    def open_node(self: State, node: Node) -> None:
        in_touch = self.contacts[node.name].in_touch
        self.fleet.set_open(node.name, is_open=in_touch and node.status != "drained", is_online=in_touch)

    return [(State, "open_node", open_node)]


@mutant
def maintenance_places_work() -> list[Patch]:
    """Work begins while there is maintenance."""
    return [(place, "frozen", lambda state: False)]


@mutant
def maintenance_gives_nodes_up() -> list[Patch]:
    """Nodes are given up while there is maintenance."""
    return [(expire, "frozen", lambda state: False)]
