"""Work ahead: short runs stand behind each other on their node; who stands behind has no room until it steps up."""

from typing import Any

import pytest

from roost.core.queue.prefill import PREFILL_MS, SHORT_RUN_MS
from roost.core.transitions import RETRACT_AFTER_MS
from roost.model.events import Reserve, SetProject
from roost.model.protocol import Drop, Report, Stop
from roost.model.reasons.attempts import Prefilled
from roost.model.reasons.subjects import InstanceRef
from roost.model.records.project import Project, Reservation
from tests.core.prefill_scene import brief, chain, charged, end, ordered, prove
from tests.core.scene import Scene, job, service

# who may


def test_short_runs_stand_behind_each_other_and_have_no_room_yet() -> None:
    scene = brief()
    done = scene.submit(job("j", count=9))
    assert chain(scene, "j.0") == ["j.1", "j.2"]
    assert scene.counts("j") == {"placed": 3, "queued": 6}
    assert (scene.used("a"), charged(scene), scene.state.priorities) == (1_000, 1, {50: 1})
    tokens = [scene.instance(f"j.{index}").token for index in range(3)]
    assert [(order.token, order.after) for order in ordered(done)] == [
        (tokens[0], 0), (tokens[1], tokens[0]), (tokens[2], tokens[1]),
    ]  # fmt: skip
    assert scene.instance("j.1").reason == Prefilled("a", InstanceRef("default", "j", 0))


def test_a_line_of_which_nothing_has_ended_yet_does_not() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("j", count=9))
    assert scene.counts("j") == {"placed": 1, "queued": 8}


@pytest.mark.parametrize(
    ("length_ms", "depth"),
    [(0, 8), (1, 8), (PREFILL_MS // 5, 5), (PREFILL_MS, 1), (PREFILL_MS + 1, 0), (SHORT_RUN_MS + 1, 0)],
)
def test_how_many_depends_on_how_long_they_take(length_ms: int, depth: int) -> None:
    scene = brief(length_ms=length_ms)
    scene.submit(job("j", count=20))
    assert len(chain(scene, "j.0")) == depth


@pytest.mark.parametrize("prefill_max", [0, 1, 3])
def test_the_operator_bounds_it_and_may_switch_it_off(prefill_max: int) -> None:
    scene = brief(length_ms=1, prefill_max=prefill_max)
    scene.submit(job("j", count=20))
    assert len(chain(scene, "j.0")) == prefill_max


def test_one_behind_each_before_any_instance_gets_a_second() -> None:
    scene = brief("a", "b")
    scene.submit(job("j", count=5))
    assert (chain(scene, "j.0"), chain(scene, "j.1")) == (["j.2", "j.4"], ["j.3"])
    assert scene.where("j.2", "j.3") == scene.where("j.0", "j.1")


def test_a_longer_run_makes_the_line_not_brief_at_once_and_short_ones_slowly_again() -> None:
    scene = brief(length_ms=10)
    scene.submit(job("j", count=40))
    assert len(chain(scene, "j.0")) == 5
    scene.ended("j.0", started_ago_ms=SHORT_RUN_MS + 60)
    assert chain(scene, "j.1") == ["j.2", "j.3", "j.4", "j.5"], "no new instance"
    for index in range(1, 6):
        scene.ended(f"j.{index}", started_ago_ms=10)
    assert scene.states("j.6") == ["placed"] and chain(scene, "j.6") == []


def test_only_what_ended_by_itself_tells_how_long_runs_take() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("warm", retries=0))
    scene.ended("warm.0", cause="error", code=None, started_ago_ms=1)
    scene.submit(job("j", count=9))
    assert chain(scene, "j.0") == []


def test_lines_are_known_each_by_itself() -> None:
    scene = brief()
    scene.submit(job("other", count=4, timeout=60))
    assert chain(scene, "other.0") == []


@pytest.mark.parametrize(
    "document",
    [
        service("j", count=4),
        job("j", count=2, gang=True),
        job("j", count=4, ports={"http": 0}),
        job("j", count=4, placement={"per_node": 1}),
        job("j", count=4, placement={"apart": [{"workload": "other"}]}),
        job("j", count=4, resources={"cpu": 1, "gpu": 1}),
        job("j", count=4, placement={"require": ["used.cpu < 100000"]}),
    ],
    ids=["service", "gang", "ports", "per_node", "apart", "gpu", "measured use"],
)
def test_what_wants_more_than_plain_room_never_stands_behind(document: dict[str, Any]) -> None:
    scene = Scene()
    scene.hello("a", cpu=1, more={"gpu": 1_000})
    scene.submit(document | {"name": "warm", "count": 1})
    scene.ended("warm.0", started_ago_ms=5)
    scene.cancel("warm")
    scene.submit(document)
    scene.submit(document | {"name": "more"})
    assert not scene.state.prefilled
    for instance in list(scene.state.allocated["a"].values()):  # rules about company make a line of each workload
        scene.ended(instance.key, started_ago_ms=5)
        assert not scene.state.prefilled


@pytest.mark.parametrize("documents", [(service("s"), job("j")), (job("j"), service("s"))], ids=["first", "second"])
def test_services_and_jobs_do_not_stand_behind_each_other(documents: tuple[dict[str, Any], ...]) -> None:
    scene = brief()
    scene.submit(*documents)
    assert len(scene.state.allocated["a"]) == 1


def test_only_the_most_urgent_line_that_waits_stands_ahead() -> None:
    scene = brief()
    prove(scene, priority=60)
    scene.submit(job("low", count=4), job("high", count=4, priority=60))
    assert chain(scene, "high.0") == ["high.1", "high.2"]
    assert scene.counts("low") == {"queued": 4}


def test_no_instance_stands_ahead_of_a_more_urgent_line_that_waits_for_more_room() -> None:
    scene = brief(cpu=4, preempt_margin=0)
    scene.submit(job("long"))
    scene.submit(job("wide", priority=90, resources={"cpu": 4}))
    scene.submit(job("j", count=9))
    assert scene.counts("wide") == {"queued": 1}
    assert not scene.state.prefilled


def test_no_instance_stands_ahead_of_a_more_urgent_gang() -> None:
    scene = brief("a", cpu=2, preempt_margin=0)
    scene.submit(job("long"))
    scene.submit(job("mpi", count=2, gang=True, priority=90))
    scene.submit(job("j", count=9))
    end(scene, "j.0")
    assert scene.states("j.1") == ["placed"] and not scene.state.prefilled


# stepping up


@pytest.mark.parametrize("how", ["well", "badly", "late", "stopped by its node", "cancelled"])
def test_an_instance_that_is_next_steps_up_when_the_one_before_ends(how: str) -> None:
    scene = brief()
    scene.submit(job("j", count=3, retries={"max": 1, "on": ["lost"]}))
    scene.running("j.0")
    if how == "cancelled":
        scene.cancel("j.0")
        assert chain(scene, "j.0") == ["j.1", "j.2"], "it keeps its room until it has ended"
        scene.stopped("j.0")
    elif how == "stopped by its node":
        scene.stopped("j.0")
    else:
        cause = "timed_out" if how == "late" else "exited"
        scene.ended("j.0", cause=cause, code=0 if how == "well" else 1, started_ago_ms=25)
    assert scene.instance("j.1").prefilled_behind == 0
    assert chain(scene, "j.1")[0] == "j.2"
    assert (scene.used("a"), charged(scene)) == (1_000, 1)


def test_an_instance_that_stepped_up_is_not_ordered_again_and_the_chain_grows_behind() -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    done = end(scene, "j.0")
    assert [(order.index, order.after) for order in ordered(done)] == [(3, scene.instance("j.2").token)]
    assert chain(scene, "j.1") == ["j.2", "j.3"]


def test_many_that_ended_are_reported_at_once() -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    tokens = [scene.instance(f"j.{index}").token for index in range(3)]
    ends = [Report(token, "ended", 25, cause="exited", code=0) for token in tokens]
    scene.report("a", *ends)
    assert scene.counts("j") == {"succeeded": 3, "placed": 3, "queued": 3}
    assert chain(scene, "j.3") == ["j.4", "j.5"]


def test_ends_reported_in_any_order_come_to_the_same() -> None:
    scene = brief()
    scene.submit(job("j", count=3))
    for name in ("j.2", "j.0", "j.1"):
        end(scene, name)
    assert scene.counts("j") == {"succeeded": 3}
    assert (scene.used("a"), scene.state.prefilled) == (0, {})


def test_all_run_in_the_end_each_once() -> None:
    scene = brief("a", "b", length_ms=5, cpu=2)
    scene.submit(job("j", count=60))
    while live := [
        instance
        for state in scene.state.allocated.values()
        for instance in state.values()
        if not instance.prefilled_behind
    ]:
        for instance in live:
            end(scene, instance.key, started_ago_ms=5)
    assert scene.counts("j") == {"succeeded": 60}
    assert {instance.attempt for instance in scene.state.instances.values()} == {1}


# leaving the chain


def test_one_that_is_cancelled_before_it_began_is_followed_by_an_instance_that_stood_behind_it() -> None:
    scene = brief(length_ms=10)
    scene.submit(job("j", count=4))
    done = scene.cancel("j.1")
    assert [order.token for order in ordered(done, Stop)] == [scene.instance("j.1").token]
    assert chain(scene, "j.0") == ["j.1", "j.2", "j.3"], "it stands there until its node has heard of it"
    done = scene.ended("j.1", cause="stopped", code=None)
    assert scene.states("j.1") == ["cancelled"] and chain(scene, "j.0") == ["j.2", "j.3"]
    assert [order.token for order in ordered(done, Drop)] == [scene.instance("j.1").token]
    assert ordered(done) == [], "its node closes the chain by itself"
    assert scene.used("a") == 1_000
    whole = scene.report("a", lacking=True)
    afters = {order.index: order.after for order in ordered(whole)}
    assert afters == {0: 0, 2: scene.instance("j.0").token, 3: scene.instance("j.2").token}


def test_one_that_is_being_stopped_when_its_turn_comes_has_the_room_until_it_has_ended() -> None:
    scene = brief()
    scene.submit(job("j", count=3))
    scene.cancel("j.1")
    end(scene, "j.0")
    assert (scene.states("j.1"), scene.used("a"), scene.instance("j.2").prefilled_behind) == (
        ["stopping"], 1_000, scene.instance("j.1").token,
    )  # fmt: skip
    scene.stopped("j.1")
    assert (scene.used("a"), scene.instance("j.2").prefilled_behind) == (1_000, 0)


def test_no_new_instance_stands_behind_one_that_is_being_stopped() -> None:
    scene = brief(length_ms=50)
    scene.submit(job("j", count=5))
    scene.cancel("j.1")
    end(scene, "j.0", started_ago_ms=50)
    assert chain(scene, "j.1") == []


def test_a_whole_workload_that_is_cancelled_leaves_nothing_behind() -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    done = scene.cancel("j")
    assert len(ordered(done, Stop)) == 3
    scene.stopped("j.0", "j.1", "j.2")
    assert scene.counts("j") == {"cancelled": 9}
    assert (scene.used("a"), scene.state.prefilled) == (0, {})


def test_an_instance_that_stands_behind_an_instance_for_too_long_is_called_back_and_runs_elsewhere() -> None:
    scene = brief(length_ms=50)
    scene.submit(job("j", count=2))
    scene.running("j.0")
    scene.hello("b", cpu=1)
    scene.wait(f"{RETRACT_AFTER_MS - 1}ms")
    assert scene.states("j.1") == ["placed"]
    done = scene.wait("1ms")
    assert scene.states("j.0", "j.1") == ["running", "stopping"]
    assert [order.cause for order in ordered(done, Stop)] == ["prefill_timeout"]
    scene.ended("j.1", cause="stopped", code=None)
    assert (scene.states("j.1"), scene.where("j.1")) == (["placed"], ["b"])
    called_back = scene.instance("j.1")
    assert (called_back.prefilled_behind, called_back.failures, called_back.losses, called_back.attempt) == (0, 0, 0, 2)


def test_only_an_instance_that_stands_there_for_so_long_is_called_back() -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    scene.wait("300ms")
    end(scene, "j.0")
    assert chain(scene, "j.1") == ["j.2", "j.3"]
    scene.wait("200ms")
    assert scene.states("j.1", "j.2", "j.3") == ["placed", "stopping", "placed"]
    scene.wait(f"{RETRACT_AFTER_MS}ms")
    assert scene.states("j.1", "j.3") == ["placed", "stopping"]


def test_one_called_back_that_has_run_meanwhile_has_run() -> None:
    scene = brief(length_ms=50)
    scene.submit(job("j", count=2))
    scene.wait(f"{RETRACT_AFTER_MS}ms")
    end(scene, "j.0")
    end(scene, "j.1")
    assert scene.states("j.0", "j.1") == ["succeeded", "succeeded"]


def test_one_called_back_again_and_again_never_counts_it_as_a_failure() -> None:
    scene = brief(length_ms=50)
    scene.submit(job("j", count=2, retries=0))
    for _ in range(3):
        scene.wait(f"{RETRACT_AFTER_MS}ms")
        if scene.states("j.1") == ["stopping"]:
            scene.ended("j.1", cause="stopped", code=None)
    assert scene.states("j.1") == ["queued"]
    end(scene, "j.0")
    end(scene, "j.1")
    assert scene.counts("j") == {"succeeded": 2}


# room that others want


def test_an_instance_that_is_preempted_takes_those_behind_it_along() -> None:
    """The room is for the instance that it was made for, not for the next of the chain."""
    scene = brief()
    scene.submit(job("j", count=9))
    scene.submit(job("high", priority=90))
    assert scene.states("j.0", "j.1", "j.2") == ["stopping"] * 3
    scene.ended("j.1", "j.2", cause="stopped", code=None)
    scene.stopped("j.0")
    assert scene.states("high.0") == ["placed"]
    assert [scene.instance(f"j.{index}").losses + scene.instance(f"j.{index}").failures for index in range(3)] == [
        0
    ] * 3


def test_a_quota_holds_also_when_it_is_lowered_under_a_chain() -> None:
    scene = brief(cpu=4, warm={"project": "red"})
    scene.submit(job("j", count=30, project="red"))
    assert charged(scene, "red") == 4
    scene.step(SetProject(1, Project("red", quota={"instances": 2})))
    for _ in range(20):
        live = [instance for instance in scene.state.allocated["a"].values() if not instance.prefilled_behind]
        if len(live) <= 2:
            break
        end(scene, min(live, key=lambda item: item.token).key)
    assert charged(scene, "red") == 2, "no new instance stands behind what is beyond the quota"


def test_a_quota_counts_only_instances_with_an_allocation() -> None:
    scene = brief(cpu=4, warm={"project": "red"})
    scene.step(SetProject(1, Project("red", quota={"instances": 1})))
    scene.submit(job("j", count=5, project="red"))
    assert (charged(scene, "red"), chain(scene, "red/j.0")) == (1, ["red/j.1", "red/j.2"])
    end(scene, "red/j.0")
    assert charged(scene, "red") == 1


def test_no_new_instance_stands_behind_where_a_node_is_reserved() -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    scene.step(Reserve(1, Reservation("soon", "blue", ("a",), scene.now + 60_000, 0), 0, ""))
    end(scene, "j.0")
    assert chain(scene, "j.1") == ["j.2"]


def test_no_instance_stands_behind_where_an_instance_wants_to_be_apart_from_it() -> None:
    scene = brief(cpu=3)
    scene.submit(job("db", placement={"apart": [{"label": "loud"}]}), job("long", timeout=60))
    scene.submit(job("calm"), job("loud", labels={"loud": "yes"}))
    assert scene.states("calm.0") == ["placed"]
    assert chain(scene, "calm.0") == []


def test_an_instance_that_does_not_want_to_wait_does_not_stand_behind_any_instance() -> None:
    scene = brief()
    scene.submit(job("j", count=2, when_full="reject"))
    assert scene.counts("j") == {"placed": 1, "rejected": 1}
