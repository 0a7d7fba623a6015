"""Sums of usage: each attempt counts once, on the days when it ran, under a name that its next run has too."""

import msgspec
import pytest

from roost.core.invariants import check
from roost.core.state import usage
from roost.core.state.usage import DAY_MS, charge_usage, recurring_name
from roost.model.events import Cancel
from roost.model.protocol import Report
from roost.model.records.instance import Instance
from roost.model.records.usage import RunUsage, UsageTotals
from roost.model.states import AttemptState, EndCause
from tests.core.scene import Scene, job

GIB = 1 << 30
USED = RunUsage(cpu_ms=3_000, memory_max=GIB // 2, io_read=10, io_written=20)
NEEDS = {"cpu": 2, "memory": "1GiB"}


def totals(scene: Scene, project: str = "default") -> UsageTotals:
    found = [day[project] for day in scene.state.usage.values() if project in day]
    return sum((entry for day in found for entry in day.workloads.values()), UsageTotals())


def runs(scene: Scene, name: str, for_ms: int = 2_000, **fields: object) -> None:
    """It ran for so long, and has ended now."""
    scene.running(name)
    scene.state.instances[f"default/{name}"].started_ms = scene.state.now_ms - for_ms
    scene.ended(name, started_ago_ms=for_ms, **fields)


def charge(scene: Scene, name: str, now: int, for_ms: int, **fields: object) -> None:
    scene.submit(job(name, resources=NEEDS, **fields))
    spent = msgspec.structs.replace(USED, wall_ms=for_ms)
    charge_usage(scene.state, scene.state.workloads[f"default/{name}"], Instance("", 0, usage=spent), now)


def test_an_attempt_counts_what_it_had_and_what_it_used() -> None:
    scene = Scene("a")
    scene.submit(job("web", resources=NEEDS))
    runs(scene, "web.0", usage=USED)
    assert totals(scene) == UsageTotals(
        attempts=1, wall_ms=2_000, cpu_ms=4_000, memory_kib_s=2 << 20, cpu_used_ms=3_000, cpu_measured_ms=4_000,
        memory_used_kib_s=1 << 20, memory_measured_kib_s=2 << 20, io_read=10, io_written=20,
    )  # fmt: skip


def test_retries_and_losses_count_each_attempt_once_however_often_it_is_reported() -> None:
    scene = Scene("a")
    scene.submit(job("web", resources=NEEDS, retries={"max": 3, "on": ["failed", "lost"]}))
    first = scene.instance("web.0").token
    runs(scene, "web.0", code=1, usage=USED)
    again = Report(first, AttemptState.ENDED, 2_000, cause=EndCause.EXITED, code=1, usage=USED)
    scene.report("a", again)
    scene.running("web.0")
    scene.state.instances["default/web.0"].started_ms -= 1_000
    scene.hello("a", identity="machine-a/2")  # the machine was restarted: its attempt is lost
    scene.report("a", again)
    runs(scene, "web.0", usage=USED)
    found = totals(scene)
    assert (found.attempts, found.unreported, found.wall_ms) == (3, 1, 5_000)
    assert (found.cpu_ms, found.cpu_measured_ms, found.cpu_used_ms) == (10_000, 8_000, 6_000)
    assert not list(check(scene.state))


def test_what_never_ran_counts_nothing() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.step(Cancel(1, "default/web"))
    scene.report("a", Report(scene.instance("web.0").token, AttemptState.ENDED, cause=EndCause.STOPPED, signal=15))
    assert scene.states("web.0") == ["cancelled"] and totals(scene) == UsageTotals()


def test_a_long_run_counts_on_each_day() -> None:
    scene = Scene("a")
    charge(scene, "web", 30 * DAY_MS + 6_000, 2 * DAY_MS + 10_000)
    days = {day: sum(found["default"].workloads.values(), UsageTotals()) for day, found in scene.state.usage.items()}
    assert {day: found.wall_ms for day, found in days.items()} == {27: 4_000, 28: DAY_MS, 29: DAY_MS, 30: 6_000}
    assert [days[day].attempts for day in sorted(days)] == [0, 0, 0, 1]
    assert totals(scene).cpu_used_ms == 3_000 and totals(scene).io_written == 20


def test_a_new_leader_counts_on_and_counts_nothing_twice() -> None:
    scene = Scene("a")
    scene.submit(job("web", count=2, resources=NEEDS))
    known = [scene.as_ordered(f"web.{index}")[0] for index in range(2)]
    scene.running("web.0", "web.1")
    scene.ended("web.0", started_ago_ms=2_000, usage=USED)
    before = totals(scene)
    scene.restart()
    assert totals(scene) == before
    over = [(run, Report(run.token, AttemptState.ENDED, 2_000, cause=EndCause.EXITED, usage=USED)) for run in known]
    scene.hello("a", *over)
    scene.hello("a", *over)
    assert totals(scene) == before + before


def test_days_lose_their_names_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "NAMES_MAX", 2)
    scene = Scene("a")
    for day in (1_000, 1_001, 1_001 + usage.NAMED_DAYS, 1_000 + usage.DAYS_MAX):
        for name in ("one", "two", "three"):
            charge(scene, f"{name}-{day}", day * DAY_MS + 10_000, 2_000, labels={"template": name})
    scene.step()
    names = {day: sorted(found["default"].workloads) for day, found in scene.state.usage.items()}
    assert names == {
        1_001: [""],
        1_001 + usage.NAMED_DAYS: [""],
        1_000 + usage.DAYS_MAX: ["", "one", "two"],
    }
    assert not list(check(scene.state))


@pytest.mark.parametrize(
    "name, labels, expected",
    [
        ("web", {}, "web"),
        ("python3-0a1b2c", {}, "python3"),
        ("train-7", {"template": "train"}, "train"),
        ("ci-20-unit", {"pipeline": "ci", "run": "20", "action": "unit"}, "ci-unit"),
    ],
)
def test_runs_of_the_same_work_share_a_name(name: str, labels: dict[str, str], expected: str) -> None:
    scene = Scene()
    scene.submit(job(name, labels=labels))
    assert recurring_name(scene.state.workloads[f"default/{name}"]) == expected
