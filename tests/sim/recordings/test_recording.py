"""History replayed: the same decisions byte by byte, and what another strategy would have made of the same work."""

from pathlib import Path

import pytest

from roost.core.placement.strategies import STRATEGIES, Strategy, pick_best
from roost.model.errors import Invalid, Unreadable
from roost.model.events import HeartbeatsReceived, NodeDisconnected
from roost.model.protocol import Usage
from roost.server.engine.recording import journals_in
from roost.sim.recordings.recording import Recording, replay_instead, replay_recorded
from roost.sim.report import Replay
from tests.core.scene import job, service
from tests.sim.recording import Recorded, read, record_simulation

SEEDS = (*range(10), 25, 42, 105)  # in the last three a step without events and changes decides something later


def instead(history: Recording, strategy: str) -> Replay:
    return replay_instead(history, strategy, lambda share: None)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_goes_wrong_is_decided_again_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    record_simulation(tmp_path, seed, monkeypatch, file_bytes_max=3_000)
    history = read(tmp_path)
    assert (history.same_decisions, history.first_difference) == (True, None)
    assert history.meter.placements > 0
    assert replay_recorded(history).metrics["steps"] == history.entries
    again = instead(history, "best_fit")
    assert again.metrics["placements"] > 0
    assert again.details["replayed_exactly"] is True


def test_a_step_that_is_decided_otherwise_is_named(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a", "b")
    scene.submit(job("one"))
    scene.journal.record(scene.state, (), [*scene.submit(job("two")).changes])  # type: ignore[union-attr]
    scene.submit(job("three"))
    history = scene.history(tmp_path)
    assert (history.same_decisions, history.first_difference) == (False, 5)  # two hellos, one, two, and what was not


@pytest.mark.parametrize("strategy", ["random", "next_fit", "least_used", "fgd"])
def test_settings_are_restored_exactly(tmp_path: Path, strategy: str) -> None:
    scene = Recorded(
        tmp_path, "a", "b", "c", strategy=strategy, seed=7, backfill_after_ms=5, lease_ms=2_000, prefill_max=2
    )
    scene.submit(job("many", count=20))
    scene.step(HeartbeatsReceived((), (("a", Usage(3_000, 1 << 30)),)))
    for _ in range(3):
        running = [
            instance.key
            for instance in scene.state.instances.values()
            if instance.state == "placed" and not instance.prefilled_behind
        ]
        scene.run_for("1s", *running)
    scene.wait("10s", silent="a")
    history = scene.history(tmp_path)
    assert history.same_decisions
    assert history.lives[0][0].header.settings == scene.settings


def test_what_only_passes_time_is_part_of_history(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a", backfill_after_ms=1_000, cpu=2)
    scene.submit(job("small"), job("large", resources={"cpu": 2}))
    scene.running("small.0")
    for _ in range(4):
        scene.wait("500ms")
    scene.submit(job("passing", resources={"cpu": 1}))
    scene.ended("small.0")
    assert scene.history(tmp_path).same_decisions


def test_figures_are_those_of_what_happened(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a", "b", cpu=1)
    scene.submit(job("one", count=3))
    scene.run_for("2s", "one.0", "one.1")
    scene.run_for("2s", "one.2")
    replay = replay_recorded(scene.history(tmp_path))
    assert replay.metrics["placements"] == 3
    assert replay.metrics["wait_mean_s"] == pytest.approx(2 / 3)
    assert replay.metrics["utilisation"] == pytest.approx(3 / 4)
    assert replay.metrics["peak_nodes"] == 2
    assert replay.metrics["waiting_at_end"] == 0
    assert replay.details == {"same_decisions": True, "first_difference": None, "recorded_strategy": "least_loaded"}
    assert [series.name for series in replay.series] == ["utilisation"]


def worked(folder: Path) -> Recording:
    """Four jobs, one after the other, spread over two nodes."""
    scene = Recorded(folder, "a", "b")
    for number in range(4):
        scene.submit(job(f"job-{number}"))
        scene.running(f"job-{number}.0")
        scene.wait("1s")
    scene.ended(*(f"job-{number}.0" for number in range(4)))
    scene.wait("1s")
    assert scene.where(*(f"job-{number}.0" for number in range(4))) == ["a", "b", "a", "b"]
    return scene.history(folder)


def test_the_same_strategy_would_have_done_the_same(tmp_path: Path) -> None:
    history = worked(tmp_path)
    replay = instead(history, "least_loaded")
    assert replay.details == {
        "replayed_exactly": True, "same_decisions": True, "first_difference": None, "moved": 0, "moves": [],
    }  # fmt: skip
    recorded = replay_recorded(history)
    assert {**replay.metrics, "steps": 0} == {**recorded.metrics, "steps": 0}


def test_another_strategy_would_have_packed_them(tmp_path: Path) -> None:
    replay = instead(worked(tmp_path), "best_fit")
    assert replay.details["moved"] == 2 and not replay.details["same_decisions"]
    assert replay.details["first_difference"] == 6  # two hellos, and three entries of the first job
    assert replay.details["moves"] == [
        {"instance": "default/job-1.0", "attempt": 1, "was": "b", "would_be": "a"},
        {"instance": "default/job-3.0", "attempt": 1, "was": "b", "would_be": "a"},
    ]
    assert replay.metrics["peak_nodes"] == 1
    assert replay.metrics["utilisation"] == replay_recorded(read(tmp_path)).metrics["utilisation"]


def test_runs_last_as_long_as_they_did_and_one_that_waited_for_room_starts_sooner(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a", "b", strategy="least_loaded")
    scene.submit(job("small", count=2), job("wide", resources={"cpu": 4}))  # one small on each: no room for the wide
    assert scene.where("small.0", "small.1") == ["a", "b"]
    scene.run_for("10s", "small.0", "small.1")
    scene.run_for("5s", "wide.0")
    history = scene.history(tmp_path)
    assert replay_recorded(history).metrics["wait_mean_s"] == pytest.approx(10 / 3)
    packed = instead(history, "best_fit")
    assert packed.metrics["wait_mean_s"] == 0
    assert packed.metrics["placements"] == 3
    assert [move["would_be"] for move in packed.details["moves"]] == ["a", "b"]


def test_what_was_cancelled_failed_retried_and_lost_happens_again(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a", "b", lease_ms=2_000)
    scene.submit(job("fails", retries={"max": 1, "on": ["failed"]}), service("web"), job("long"))
    scene.running("fails.0", "web.0", "long.0")
    scene.wait("1s")
    scene.ended("fails.0", code=3)
    scene.wait("2s")
    scene.run_for("1s", "fails.0")
    scene.cancel("long")
    scene.wait("30ms")
    scene.stopped("long.0")
    lost = scene.where("web.0")[0]
    scene.wait("1s", silent=lost)
    scene.wait("3s", silent=lost)
    assert scene.where("web.0") != [lost]
    scene.running("web.0")
    scene.wait("1s")
    history = scene.history(tmp_path)
    assert history.same_decisions
    replay = instead(history, "least_loaded")
    assert (replay.details["moved"], replay.metrics["placements"]) == (0, 5)


def test_a_node_that_comes_back_goes_on_with_what_it_runs(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a")
    scene.submit(job("one"))
    scene.running("one.0")
    scene.wait("1s")
    scene.part("a")
    scene.now += 500
    scene.hello("a", "one.0", sent_ms=1)
    scene.wait("1s")
    scene.ended("one.0")
    scene.submit(job("two"))
    scene.run_for("1s", "two.0")
    replay = instead(scene.history(tmp_path), "best_fit")
    assert (replay.details["moved"], replay.metrics["placements"], replay.metrics["waiting_at_end"]) == (0, 2, 0)


def test_words_that_did_not_count_do_not_count_again(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a", cpu=1)
    scene.submit(job("one"))
    scene.running("one.0")
    old = scene.state.nodes["a"].session
    scene.now += 500
    scene.hello("a", "one.0", sent_ms=1)
    scene.step(NodeDisconnected("a", old))
    scene.hello("a", identity="a stranger")
    scene.wait("1s")
    scene.ended("one.0")
    scene.submit(job("two"))
    scene.run_for("1s", "two.0")
    replay = instead(scene.history(tmp_path), "best_fit")
    assert (replay.details["moved"], replay.metrics["placements"], replay.metrics["waiting_at_end"]) == (0, 2, 0)


@pytest.mark.parametrize("fenced", [True, False])
def test_what_ran_on_a_node_that_was_lost_takes_no_room_when_it_is_back(tmp_path: Path, fenced: bool) -> None:
    scene = Recorded(tmp_path, "a", "b", lease_ms=2_000)
    scene.submit(job("one", fenced=fenced, resources={"cpu": 4}), job("two", resources={"cpu": 4}))
    scene.running("one.0", "two.0")
    scene.wait("1s", silent="a")
    scene.wait("3s", silent="a")
    scene.hello("a", sent_ms=1)
    assert (scene.where("one.0"), scene.instance("one.0").attempt) == (["a"], 2)
    scene.run_for("2s", "one.0", "two.0")
    replay = instead(scene.history(tmp_path), "best_fit")
    assert (replay.details["moved"], replay.metrics["placements"], replay.metrics["waiting_at_end"]) == (0, 3, 0)
    assert replay.metrics["steps"] < 40


def test_lives_follow_each_other_and_work_goes_on_from_one_to_the_next(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a", "b")
    scene.submit(job("one"), job("two"))
    scene.running("one.0", "two.0")
    scene.wait("1s")
    scene.restart()
    scene.hello("a", "one.0", sent_ms=1)
    scene.hello("b", "two.0", sent_ms=1)
    scene.submit(job("three"))
    scene.run_for("1s", "one.0", "two.0", "three.0")
    history = scene.history(tmp_path)
    assert (history.facts()["lives"], history.same_decisions) == (2, True)
    replay = instead(history, "best_fit")
    assert [move["instance"] for move in replay.details["moves"]] == ["default/two.0"]  # each life begins as it did
    assert replay.metrics["placements"] == 3


def test_files_of_one_life_are_one_history_and_a_missing_beginning_is_reported(tmp_path: Path) -> None:
    scene = Recorded(tmp_path, "a", "b", file_bytes_max=2_000)
    for number in range(30):
        scene.submit(job(f"job-{number}"))
        scene.run_for("1s", f"job-{number}.0")
    history = scene.history(tmp_path)
    files = journals_in(tmp_path)
    assert len(files) > 3
    assert (history.facts()["lives"], history.same_decisions, history.meter.placements) == (1, True, 30)
    files[0].unlink()
    rest = read(tmp_path)
    assert (rest.same_decisions, replay_recorded(rest).details["first_difference"]) == (None, None)
    assert 0 < rest.meter.placements < 30
    assert instead(rest, "best_fit").metrics["placements"] == rest.meter.placements
    files[2].unlink()
    assert read(tmp_path).facts()["lives"] == 2
    with files[3].open("rb+") as file:
        file.truncate(files[3].stat().st_size - 3)
    with pytest.raises(Unreadable, match="the end of the file before this one is missing"):
        read(tmp_path)


def test_a_plug_in_that_took_part_has_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "ours", Strategy("ours", (), pick_best))
    scene = Recorded(tmp_path, "a", strategy="ours")
    scene.submit(job("one"))
    assert scene.history(tmp_path).same_decisions
    monkeypatch.undo()
    with pytest.raises(Invalid, match="the strategy ours took part and is not there now"):
        read(tmp_path)


def test_an_empty_folder_and_an_unknown_strategy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no journal in this folder"):
        read(tmp_path)
    with pytest.raises(Invalid, match="psychic"):
        instead(worked(tmp_path), "psychic")
