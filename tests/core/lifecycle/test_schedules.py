"""Schedules: each tick makes one run, once; what is missed, skipped or in the way is reported."""

from datetime import datetime
from typing import Any

import pytest

from roost.core.explain.why import why
from roost.core.lifecycle.schedules import RUN_UNITS
from roost.model.events import RunNow
from roost.model.reasons.attempts import RunReplaced
from roost.model.reasons.subjects import WorkloadRef
from roost.schema.reason_text import message_of, render_text
from tests.core.scene import Scene, job, outcome


def moment(text: str) -> int:
    """A moment of an ISO time such as 2026-03-01T10:00Z, in ms."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def scene_at(text: str, *nodes: str, **settings: Any) -> Scene:
    """A scene that begins at a moment."""
    scene = Scene(**settings)
    scene.now = moment(text)
    scene.step()
    for name in nodes or ("n",):
        scene.hello(name)
    return scene


def nightly(cron: str = "0 * * * *", **block: Any) -> dict[str, Any]:
    return job("nightly", schedule={"cron": cron, **block})


def runs(scene: Scene) -> list[str]:
    found = [workload for workload in scene.state.workloads.values() if workload.parent]
    return [workload.name.removeprefix("nightly-") for workload in sorted(found, key=lambda item: item.serial)]


def parent(scene: Scene) -> Any:
    return scene.state.workloads["default/nightly"]


def finish(scene: Scene, name: str, code: int = 0) -> None:
    scene.ended(f"nightly-{name}.0", code=code)


def silent(scene: Scene, until: str) -> None:
    """No server until a moment; then a new one."""
    scene.now = moment(until)
    scene.restart()
    scene.step()


def test_a_schedule_does_not_run_itself_but_makes_a_run_at_each_tick() -> None:
    scene = scene_at("2026-03-01T10:30Z")
    assert outcome(scene.submit(nightly())) == {"changes": ["workload nightly"], "replies": ["nightly"]}
    assert scene.steps[-1].wake_at_ms <= moment("2026-03-01T11:00Z")
    scene.wait("29m")
    assert runs(scene) == []
    done = outcome(scene.wait("1m"))
    assert done == {
        "changes": ["workload nightly-202603011100", "workload nightly", "instance nightly-202603011100.0 placed"],
        "orders": ["n: run nightly-202603011100.0 attempt 1"],
    }
    run = scene.state.workloads["default/nightly-202603011100"]
    assert (run.parent, run.tick_ms) == ("default/nightly", moment("2026-03-01T11:00Z"))
    assert run.policy.schedule is None
    assert scene.counts("nightly") == {"queued": 1}
    finish(scene, "202603011100")
    scene.wait("1h")
    assert runs(scene) == ["202603011100", "202603011200"]


def test_a_tick_runs_once_whatever_restarts_in_between() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly(overlap="allow"))
    scene.wait("1m")
    for _ in range(3):
        scene.restart()
        scene.step()
    assert runs(scene) == ["202603011100"]


def test_a_clock_that_is_set_back_brings_no_tick_twice() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly(overlap="allow", history_limit=0))
    scene.wait("1m")
    finish(scene, "202603011100")
    assert runs(scene) == []  # not even its name is left
    scene.now = moment("2026-03-01T10:30Z")
    scene.restart()
    scene.hello("n")
    scene.wait("30m")
    assert runs(scene) == []
    scene.wait("1h")
    assert runs(scene) == ["202603011200"]


@pytest.mark.parametrize(
    ("catch_up", "made", "missed"),
    [
        (0, ["202603011800"], "missed ticks up to 2026-03-01 17:00+00:00"),
        (1, ["202603011700", "202603011800"], "missed ticks up to 2026-03-01 16:00+00:00"),
        (
            3,
            ["202603011500", "202603011600", "202603011700", "202603011800"],
            "missed ticks up to 2026-03-01 14:00+00:00",
        ),
        (100, [f"202603011{index}00" for index in range(1, 9)], ""),
    ],
)
def test_after_an_outage_the_last_ticks_are_made_up_for(catch_up: int, made: list[str], missed: str) -> None:
    scene = scene_at("2026-03-01T10:30Z")
    scene.submit(nightly(overlap="allow", catch_up=catch_up))
    silent(scene, "2026-03-01T18:00:30Z")
    assert runs(scene) == made
    assert message_of(parent(scene).reason) == missed
    scene.step()
    assert runs(scene) == made


def test_what_was_missed_and_is_not_made_up_for_stays_so() -> None:
    scene = scene_at("2026-03-01T10:30Z")
    scene.submit(nightly(catch_up=0))
    silent(scene, "2026-03-01T11:30Z")
    assert runs(scene) == []
    assert message_of(parent(scene).reason) == "missed 2026-03-01 11:00+00:00"
    silent(scene, "2026-03-01T11:40Z")
    assert runs(scene) == []
    scene.hello("n")
    scene.wait("20m")
    assert runs(scene) == ["202603011200"]
    assert parent(scene).reason is None


def test_an_outage_of_years_is_over_at_once() -> None:
    scene = scene_at("2006-03-01T10:30Z")
    scene.submit(nightly("* * * * *", overlap="allow", catch_up=2))
    silent(scene, "2026-03-01T12:00:30Z")
    assert runs(scene) == ["202603011158", "202603011159", "202603011200"]


def test_skip_leaves_a_tick_out_while_a_run_is_not_over() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly())
    scene.wait("1m")
    scene.wait("1h")
    assert runs(scene) == ["202603011100"]
    message = "2026-03-01 12:00+00:00 skipped: default/nightly-202603011100 is still active"
    assert message_of(parent(scene).reason) == message
    assert render_text(why(scene.state, "default/nightly").text) == (
        f"default/nightly runs by its schedule, next at 2026-03-01 13:00+00:00 (UTC); last time: {message}"
    )
    finish(scene, "202603011100")
    scene.wait("1h")
    assert runs(scene) == ["202603011100", "202603011300"]


def test_allow_lets_runs_be_side_by_side_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.core.lifecycle.schedules.LIVE_RUNS_MAX", 2)
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly(overlap="allow"))
    scene.wait("1m")
    scene.wait("1h")
    assert scene.states("nightly-202603011100.0", "nightly-202603011200.0") == ["placed", "placed"]
    scene.wait("1h")
    assert message_of(parent(scene).reason) == "2026-03-01 13:00+00:00 skipped: 2 runs are still active"


def test_wait_lets_the_next_run_wait_for_all_before_it() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly(overlap="wait"))
    for _ in range(3):
        scene.wait("1m" if not runs(scene) else "1h")
    assert runs(scene) == ["202603011100", "202603011200", "202603011300"]
    scene.cancel("nightly-202603011200")
    assert scene.counts("nightly-202603011300") == {"queued": 1}
    finish(scene, "202603011100", code=1)
    assert scene.states("nightly-202603011300.0") == ["placed"]


def test_replace_stops_the_run_before_and_starts_when_it_has_stopped() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly(overlap="replace"))
    scene.wait("1m")
    scene.running("nightly-202603011100.0")
    scene.wait("1h")
    assert scene.states("nightly-202603011100.0") == ["stopping"]
    assert scene.instance("nightly-202603011100.0").reason == RunReplaced(
        WorkloadRef("default", "nightly-202603011200")
    )
    assert scene.counts("nightly-202603011200") == {"queued": 1}
    scene.stopped("nightly-202603011100.0")
    assert scene.states("nightly-202603011200.0") == ["placed"]


def test_a_name_in_use_skips_the_tick_and_nothing_is_stuck() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly(), job("nightly-202603011100"))
    scene.wait("1m")
    assert runs(scene) == []
    message = "the name default/nightly-202603011100 is in use"
    assert message_of(parent(scene).reason) == f"2026-03-01 11:00+00:00 skipped: {message}"
    scene.wait("1h")
    assert runs(scene) == ["202603011200"]


def test_a_run_that_would_be_refused_is_reported() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(job("build", retention=0), job("nightly", after=["build"], schedule="0 * * * *"))
    scene.ended("build.0")
    scene.wait("1m")
    assert message_of(parent(scene).reason) == (
        "2026-03-01 11:00+00:00 skipped: after[0].workload: there is no workload build; submit it first or in the "
        "same request"
    )


def test_a_run_waits_for_what_its_schedule_names() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(job("build"), job("nightly", after=["build"], schedule="0 * * * *"))
    scene.wait("1m")
    assert scene.counts("nightly-202603011100") == {"queued": 1}
    scene.ended("build.0")
    assert scene.states("nightly-202603011100.0") == ["placed"]


def test_runs_that_are_over_are_kept_up_to_a_number() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly(history_limit=2))
    scene.wait("1m")
    for hour in (11, 12, 13):
        finish(scene, f"20260301{hour}00")
        scene.wait("1h")
    assert runs(scene) == ["202603011200", "202603011300", "202603011400"]


def test_cancelling_a_schedule_ends_it_and_its_runs_go_on() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly())
    scene.wait("1m")
    scene.cancel("nightly")
    assert parent(scene).finished_ms
    assert scene.states("nightly-202603011100.0") == ["placed"]
    scene.wait("3h")
    assert runs(scene) == ["202603011100"]
    finish(scene, "202603011100")
    scene.retry("nightly")  # it begins anew: what was missed since is not made up for
    assert runs(scene) == ["202603011100"]
    scene.wait("1h")
    assert runs(scene) == ["202603011100", "202603011500"]


def test_an_index_of_a_schedule_cannot_be_cancelled() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(job("nightly", count=3, schedule="0 * * * *"))
    assert outcome(scene.cancel("nightly.1"))["replies"][0].startswith("409 conflict: index: default/nightly runs by a")


def test_a_changed_schedule_replaces_the_one_before() -> None:
    scene = scene_at("2026-03-01T10:30Z")
    scene.submit(nightly())
    scene.submit(nightly("15 * * * *"), same_ok=True)
    scene.wait("30m")
    assert runs(scene) == []
    scene.wait("15m")
    assert runs(scene) == ["202603011115"]
    scene.submit(nightly("15 * * * *") | {"command": "false"}, same_ok=True)
    finish(scene, "202603011115")
    scene.wait("1h")
    assert runs(scene) == ["202603011115", "202603011215"]
    assert sum(kind == "cron" for _, kind, _ in scene.state.timers) <= 2


def test_the_hour_that_comes_twice_gives_every_run_a_name() -> None:
    scene = scene_at("2026-10-24T23:50Z")  # 01:50 in Berlin; at 01:00Z the clocks go back from 03:00 to 02:00
    scene.submit(nightly("*/30 * * * *", zone="Europe/Berlin", overlap="allow"))
    for _ in range(5):
        scene.wait("10m" if not runs(scene) else "30m")
    assert runs(scene) == ["202610250200", "202610250230", "202610250200-2", "202610250230-2", "202610250300"]


def test_the_name_of_the_second_hour_does_not_depend_on_the_first() -> None:
    scene = scene_at("2026-10-25T00:59Z")  # 02:59 in Berlin, the first time
    scene.submit(nightly("0 * * * *", zone="Europe/Berlin"))
    scene.wait("1m")
    assert runs(scene) == ["202610250200-2"]


def test_a_time_of_day_that_comes_twice_runs_once_and_one_that_is_left_out_runs_after_it() -> None:
    scene = scene_at("2026-10-24T12:00Z")
    scene.submit(nightly("30 2 * * *", zone="Europe/Berlin", overlap="allow"))
    for _ in range(26):
        scene.wait("1h")
    assert runs(scene) == ["202610250230"]
    scene = scene_at("2026-03-28T12:00Z")  # at 01:00Z of the 29th the clocks go from 02:00 to 03:00
    scene.submit(nightly("30 2 * * *", zone="Europe/Berlin", overlap="allow"))
    for _ in range(40):
        scene.wait("1h")
    assert runs(scene) == ["202603290300", "202603300230"]


def test_a_run_can_be_had_besides_the_ticks() -> None:
    scene = scene_at("2026-03-01T10:59:30Z")
    scene.submit(nightly(overlap="allow"))
    assert outcome(scene.step(RunNow(1, "default/nightly")))["replies"] == ["nightly-202603011059"]
    assert outcome(scene.step(RunNow(1, "default/nightly")))["replies"] == ["nightly-202603011059-2"]
    scene.wait("30s")
    assert runs(scene) == ["202603011059", "202603011059-2", "202603011100"]
    for number in range(3, 10):
        assert outcome(scene.step(RunNow(1, "default/nightly"))), number
    scene.submit(job("plain"))
    replies = [
        outcome(scene.step(RunNow(1, f"default/{name}")))["replies"][0] for name in ("plain", "nobody", "nightly")
    ]
    assert replies[:2] == [
        "409 no_schedule: default/plain has no schedule; `retry` runs it again",
        "404 not_found: there is no workload default/nobody",
    ]


def test_a_run_besides_the_ticks_minds_the_run_before() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly())
    scene.step(RunNow(1, "default/nightly"))
    assert outcome(scene.step(RunNow(1, "default/nightly")))["replies"] == [
        "409 run_refused: no run was made: 2026-03-01 10:59+00:00 skipped: default/nightly-202603011059 is still active"
    ]
    scene.cancel("nightly")
    assert outcome(scene.step(RunNow(1, "default/nightly")))["replies"] == [
        "409 no_schedule: default/nightly was ended: cancelled"
    ]


def test_a_step_makes_a_bounded_number_of_runs() -> None:
    scene = scene_at("2026-03-01T10:59Z", step_units=3 * RUN_UNITS)
    for number in range(8):
        scene.submit(job(f"s{number}", schedule="0 * * * *"))
    scene.wait("1m")
    made = []
    while len(made) < 4 and (not made or made[-1] < 8):
        made.append(sum(bool(workload.parent) for workload in scene.state.workloads.values()))
        scene.step()
    assert made == [3, 6, 8]


def test_each_run_has_the_values_of_its_schedule() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(job("nightly", each=["a", "b"], schedule="0 * * * *"))
    scene.wait("1m")
    assert [run.env for run in scene.runs.values()] == [(("ROOST_VALUE", "a"),), (("ROOST_VALUE", "b"),)]


def test_a_standby_knows_schedules_and_their_runs() -> None:
    scene = scene_at("2026-03-01T10:59Z")
    scene.submit(nightly(overlap="allow", history_limit=1))
    for number in range(3):
        scene.wait("1m" if not number else "1h")
        finish(scene, f"20260301{11 + number}00")
        assert scene.standby.schedules == scene.state.schedules == {"default/nightly": None}
        assert (
            scene.standby.runs
            == scene.state.runs
            == {"default/nightly": {f"default/nightly-20260301{11 + number}00": None}}
        )
