"""Measured use: smoothed, reported only when it moved, and what `least_used` places by."""

import pytest

from roost.core.placement.scorers import calmness
from roost.core.state.fleet import CHANGE_MIN, HALF_LIFE_MS, WHOLE, Fleet, Gauge, decay, share_of
from roost.model.events import HeartbeatsReceived
from roost.model.protocol import Usage
from tests.core.fleet_builder import FleetBuilder, asked
from tests.core.scene import Scene, facts_of, job

GIB = 1 << 30


def test_what_is_old_counts_half_after_thirty_seconds() -> None:
    assert HALF_LIFE_MS == 30_000
    assert [decay(30_000 * index) for index in range(4)] == [WHOLE, WHOLE // 2, WHOLE // 4, WHOLE // 8]
    for past_ms in range(0, 120_000, 500):
        assert decay(past_ms) == pytest.approx(WHOLE * 0.5 ** (past_ms / 30_000), rel=0.01, abs=1)
    assert decay(-5) == WHOLE and decay(10**12) == 0


def test_often_or_seldom_heard_a_new_load_is_half_seen_after_a_half_life() -> None:
    for every_ms in (250, 1_000, 5_000, 30_000):
        gauge = Gauge()
        gauge.update({"cpu": 0}, 0)
        for at_ms in range(every_ms, 30_001, every_ms):
            gauge.update({"cpu": 600_000}, at_ms)
        assert gauge.smooth["cpu"] == pytest.approx(300_000, rel=0.04), every_ms


def test_the_first_measurement_is_believed_and_time_that_runs_backwards_changes_nothing() -> None:
    gauge = Gauge()
    assert gauge.update({"cpu": 700_000}, 1_000)
    assert gauge.smooth == {"cpu": 700_000}
    assert not gauge.update({"cpu": 0}, 500)
    assert gauge.smooth == {"cpu": 700_000}


def test_shares_are_bounded_and_of_nothing_there_is_none() -> None:
    assert [share_of(*item) for item in ((1, 4), (9, 4), (-1, 4), (3, 0))] == [WHOLE // 4, WHOLE, 0, 0]


def test_shortlists_hear_of_it_only_when_it_moved_by_more_than_a_hundredth() -> None:
    fleet = Fleet()
    fleet.join("a", facts_of(cpu=100, memory=GIB))
    start = fleet.position
    fleet.measure("a", Usage(cpu_milli=900), 0)
    assert (fleet.changed_since(start), fleet.measured["cpu"].tolist()) == ((), [0])
    fleet.measure("a", Usage(cpu_milli=40_000), 30_000)
    assert fleet.changed_since(start) == (0,)
    answer = fleet.measured["cpu"].tolist()
    assert answer == [(9_000 + 400_000) // 2]
    position = fleet.position
    for at_ms in range(30_000, 40_000, 1_000):
        fleet.measure("a", Usage(cpu_milli=20_450 + at_ms % 3), at_ms)
    assert (fleet.position, fleet.measured["cpu"].tolist()) == (position, answer)
    fleet.measure("a", Usage(cpu_milli=20_450, memory=GIB), 41_000)
    assert fleet.position == position + 1
    assert fleet.measured["memory"].item(0) > CHANGE_MIN


def test_measurements_stay_with_their_node_when_others_come_and_go() -> None:
    fleet = Fleet()
    fleet.join("b", facts_of(cpu=4))
    fleet.measure("b", Usage(cpu_milli=2_000), 0)
    fleet.join("a", facts_of(cpu=4))
    assert fleet.measured["cpu"].tolist() == [0, WHOLE // 2]
    fleet.leave("b")
    fleet.join("b", facts_of(cpu=4))
    assert fleet.measured["cpu"].tolist() == [0, 0]


def test_least_used_goes_where_least_is_really_used() -> None:
    builder = FleetBuilder("a", "b", "c", cpu=8, memory="8GiB", strategy="least_used")
    builder.fleet.measure("a", Usage(6_000, GIB), 0)
    builder.fleet.measure("b", Usage(1_000, 2 * GIB), 0)
    builder.fleet.measure("c", Usage(1_000, 5 * GIB), 0)
    assert builder.scores("x") == {"a": 562, "b": 812, "c": 625}
    assert builder.place("x", resources={"cpu": 1}) == "b"


def test_promises_count_half_until_they_are_measured() -> None:
    builder = FleetBuilder("a", "b", cpu=8, memory="8GiB", strategy="least_used")
    builder.fleet.measure("a", Usage(1_600, 0), 0)
    builder.fleet.measure("b", Usage(0, 0), 0)
    went = builder.places("x", 8, resources={"cpu": 1})
    assert went == ["b"] * 4 + ["a"] * 4, "the floor sends the batch on, before anything of it was measured"
    builder.fleet.measure("b", Usage(8_000, 0), 600_000)
    assert builder.place("y", resources={"cpu": 1}) == "a"


def test_the_score_of_all_rows_is_that_of_each() -> None:
    builder = FleetBuilder("a", "b", "c", cpu=8, memory="8GiB")
    builder.place("x", require=["name == 'a'"], resources={"cpu": 6, "memory": "1GiB"})
    builder.place("x", require=["name == 'b'"], resources={"cpu": 6, "memory": "8GiB"})
    builder.fleet.measure("b", Usage(7_000, GIB), 0)
    ask = asked("y")[0].ask
    scores = calmness.score(builder.fleet, ask).tolist()
    assert scores == [WHOLE - (375_000 + 62_500) // 2, WHOLE - (875_000 + 500_000) // 2, WHOLE]
    assert scores == [calmness.score_one(builder.fleet, ask, row) for row in range(3)]


def test_least_used_without_measurements_goes_by_promises() -> None:
    builder = FleetBuilder("a", "b", cpu=4, strategy="least_used")
    assert builder.places("x", 4) == ["a", "b", "a", "b"]
    assert FleetBuilder(strategy="least_used").place("x") == ""


def test_what_agents_say_is_heard_and_not_stored() -> None:
    scene = Scene("a", "b", cpu=8, strategy="least_used")
    done = scene.step(HeartbeatsReceived((), (("a", Usage(cpu_milli=4_000)), ("nobody", Usage(1)))))
    assert done.changes == []
    scene.submit(job("x"))
    assert scene.where("x.0") == ["b"]
    scene.restart()
    assert scene.state.fleet.measured["cpu"].tolist() == [0, 0]
