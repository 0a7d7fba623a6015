"""What happens after an attempt: retries by cause, services that start again, limits on both."""

import pytest

from roost.core.lifecycle.restarts import STEADY_MS
from roost.model.records.files import InputFailure, InputProblem
from roost.model.records.workload import DEFAULT_RESTART
from tests.core.scene import Scene, job, outcome, service


@pytest.mark.parametrize(
    ("retries", "code", "cause", "again"),
    [
        ({"max": 1, "on": ["failed"]}, 1, "exited", True),
        ({"max": 1, "on": ["exit:75"]}, 75, "exited", True),
        ({"max": 1, "on": ["exit:75"]}, 7, "exited", False),
        ({"max": 1, "on": ["timed_out"]}, None, "timed_out", True),
        ({"max": 1, "on": ["failed"]}, None, "timed_out", False),
        ({"max": 0, "on": ["failed"]}, 1, "exited", False),
        ({"max": 1, "on": ["failed"]}, 0, "exited", False),
        ({"max": 1, "on": ["lost"]}, 1, "exited", False),
        (3, 1, "exited", False),
    ],
)
def test_an_attempt_is_repeated_for_the_causes_that_were_named(
    retries: object, code: int | None, cause: str, again: bool
) -> None:
    scene = Scene("a")
    scene.submit(job("web", retries=retries))
    scene.ended("web.0", code=code, cause=cause)
    assert (scene.states("web.0") == ["placed"]) is again


FULL = InputFailure(InputProblem.DISK_FULL)
GONE = InputFailure(InputProblem.NOT_FOUND, "data", is_final=True)


@pytest.mark.parametrize(
    ("retries", "failure", "again"),
    [
        (1, FULL, True),
        ({"max": 1, "on": ["failed"]}, FULL, True),
        ({"max": 1, "on": ["timed_out"]}, FULL, False),
        (0, FULL, False),
        (3, GONE, False),
        ({"max": 3, "on": ["failed"]}, GONE, False),
    ],
)
def test_inputs_are_fetched_again_where_that_can_help(retries: object, failure: InputFailure, again: bool) -> None:
    scene = Scene("a")
    scene.submit(job("web", retries=retries))
    scene.ended("web.0", cause="error", code=None, inputs_failed=failure)
    assert scene.states("web.0") == (["queued"] if again else ["failed"])
    scene.wait("10s")
    assert scene.states("web.0") == (["placed"] if again else ["failed"])


def test_inputs_are_fetched_again_after_longer_and_longer_pauses_and_at_most_so_often() -> None:
    scene = Scene("a")
    scene.submit(job("web", retries=6))
    pauses = []
    for _ in range(6):
        scene.ended("web.0", cause="error", code=None, inputs_failed=FULL)
        pauses.append(scene.instance("web.0").not_before_ms - scene.now)
        scene.wait("1m")
    assert pauses == [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]
    scene.ended("web.0", cause="error", code=None, inputs_failed=FULL)
    assert scene.states("web.0") == ["failed"]


def test_retries_end_with_the_last_ending() -> None:
    scene = Scene("a")
    scene.submit(job("web", retries={"max": 2, "on": ["failed"]}))
    for _ in range(2):
        scene.ended("web.0", code=1)
    assert outcome(scene.ended("web.0", code=4)) == {
        "changes": ["instance web.0 failed", "workload web"],
        "orders": ["a: drop"],
    }
    instance = scene.instance("web.0")
    assert (instance.attempt, instance.failures, instance.exit_code) == (3, 2, 4)


def test_a_new_attempt_has_a_larger_token_and_keeps_nothing_of_the_old_one() -> None:
    scene = Scene("a")
    scene.submit(job("web", retries={"max": 1, "on": ["failed"]}))
    scene.running("web.0", step=2)
    old = scene.instance("web.0").token
    scene.ended("web.0", code=9, step=2)
    new = scene.instance("web.0")
    assert new.token > old
    assert (new.exit_code, new.signal, new.step, new.started_ms, new.finished_ms) == (None, None, 0, 0, 0)


def test_an_attempt_is_not_repeated_after_its_deadline() -> None:
    scene = Scene("a")
    scene.submit(job("web", deadline="10s", retries={"max": 3, "on": ["failed"]}))
    scene.running("web.0")
    scene.wait("11s")
    assert scene.states("web.0") == ["running"], "what runs may finish"
    scene.ended("web.0", code=1)
    assert (scene.states("web.0"), scene.instance("web.0").exit_code) == (["failed"], 1)


# services


def test_a_service_that_ends_starts_again_after_a_pause_that_doubles() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    pauses = []
    for _ in range(9):
        scene.running("web.0")
        done = scene.ended("web.0")
        assert outcome(done)["orders"] == ["a: drop"]
        pauses.append(scene.instance("web.0").not_before_ms - scene.now)
        scene.now = scene.instance("web.0").not_before_ms
        scene.wait("0")
        assert scene.states("web.0") == ["placed"]
    assert pauses[0] == DEFAULT_RESTART.pause_ms and pauses[-1] == DEFAULT_RESTART.pause_max_ms
    assert pauses == [min(DEFAULT_RESTART.pause_ms << number, DEFAULT_RESTART.pause_max_ms) for number in range(9)]


def test_a_service_that_ran_long_enough_begins_with_the_first_pause() -> None:
    scene = Scene("a", lease_ms=10 * STEADY_MS)
    scene.submit(service("web"))
    scene.running("web.0")
    scene.ended("web.0", code=1)
    scene.wait("1s")
    scene.running("web.0")
    scene.wait("60s")
    scene.ended("web.0", code=1)
    assert scene.instance("web.0").not_before_ms - scene.now == DEFAULT_RESTART.pause_ms


def test_while_a_service_pauses_others_use_its_room() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(service("web"))
    scene.submit(job("short"))
    scene.ended("web.0", code=1)
    assert scene.states("short.0") == ["placed"]
    scene.wait("2s")
    assert scene.states("web.0") == ["queued"]
    scene.ended("short.0")
    assert scene.states("web.0") == ["placed"]


def test_a_pause_survives_a_restart_of_the_server() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    scene.ended("web.0", code=1)
    scene.restart()
    scene.hello("a")
    assert scene.states("web.0") == ["queued"]
    scene.wait("1s")
    assert scene.states("web.0") == ["placed"]
