"""Needs: what the last runs of the same work used, and requests that are far above it."""

import msgspec
import pytest

from roost.core.explain.advice import advise
from roost.core.explain.notes import notes_on
from roost.core.state import needs
from roost.core.state.needs import RUNS_MAX, RUNS_MIN
from roost.core.state.usage import charge_usage
from roost.core.step import make_plan
from roost.model.events import Submit
from roost.model.reasons.needs import RequestAboveUse
from roost.model.records.instance import Instance
from roost.model.records.usage import RunUsage
from tests.core.scene import Scene, job, wanted

MIB = 1 << 20


def ran(
    scene: Scene, memory: int | None, times: int = 1, wall_ms: int = 10_000, code: int = 0, name: str = "web"
) -> None:
    """So many runs of a job used this much, and half a core."""
    spec = scene.state.workloads[f"default/{name}"]
    used = RunUsage(wall_ms // 2, memory, wall_ms=wall_ms)
    for _ in range(times):
        charge_usage(scene.state, spec, Instance("", 0, exit_code=code, usage=used), scene.now)
    scene.step()


def scene_of(**resources: object) -> Scene:
    scene = Scene("a", cpu=16)
    scene.submit(job("web", resources=resources))
    return scene


def test_a_request_far_above_use_is_named_in_why_and_in_a_plan() -> None:
    scene = scene_of(cpu=4, memory="8GiB")
    ran(scene, 900 * MIB, RUNS_MIN - 1)
    assert advise(scene.state, "default/web")[1].notes == ()
    ran(scene, 500 * MIB)
    expected = (
        RequestAboveUse("cpu", 4_000, 500, RUNS_MIN),
        RequestAboveUse("memory", 8 << 30, 900 * MIB, RUNS_MIN),
    )
    assert advise(scene.state, "default/web")[1].notes == expected
    again = (wanted(job("web-0a1b2c", resources={"cpu": 4, "memory": "8GiB"})),)
    assert make_plan(scene.state, Submit(0, again), scene.now).notes == tuple(
        ("default/web-0a1b2c", note) for note in expected
    )


def test_old_runs_are_forgotten() -> None:
    scene = scene_of(memory="8GiB")
    ran(scene, 7 << 30)
    ran(scene, 100 * MIB, RUNS_MAX - 1)
    assert notes_on(scene.state, scene.state.workloads["default/web"]) == ()
    ran(scene, 100 * MIB)
    (note,) = notes_on(scene.state, scene.state.workloads["default/web"])
    assert (note.used_max, note.runs) == (100 * MIB, RUNS_MAX)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "runs",
    [
        {"memory": 7 << 30},  # it uses what it asks for
        {"memory": None},  # not measured
        {"memory": 10 * MIB, "wall_ms": 900},  # too short
        {"memory": 10 * MIB, "code": 1},  # it failed early
    ],
)
def test_no_note_where_nothing_is_known(runs: dict[str, int | None]) -> None:
    scene = scene_of(memory="8GiB")
    ran(scene, times=RUNS_MAX, **runs)  # type: ignore[arg-type]
    assert notes_on(scene.state, scene.state.workloads["default/web"]) == ()


def test_a_long_run_counts_however_it_ended() -> None:
    scene = scene_of(memory="8GiB")
    ran(scene, 10 * MIB, RUNS_MIN, wall_ms=60_000, code=1)
    assert len(notes_on(scene.state, scene.state.workloads["default/web"])) == 1


def test_needs_are_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "NEEDS_MAX", 16)
    scene = Scene("a")
    for number in range(17):
        scene.now += 1
        scene.submit(job(f"job{number}"))
        ran(scene, MIB, name=f"job{number}")
    assert sorted(scene.state.needs) == sorted(f"default/job{number}" for number in range(2, 17))
    assert {change.key for change in scene.memory.snapshot().records if change.kind == "need"} == set(scene.state.needs)
    assert msgspec.structs.astuple(scene.state.needs["default/job2"])[3] == ((500, MIB),)
