"""Health checks in the simulated world: runs become ready after a while, some never do, and all ends well anyway."""

from typing import Any

import pytest

from roost.agent.actor import Attempt
from roost.model.frames import Report
from roost.sim import scenario
from roost.sim.simulate import simulate

SEEDS = range(900, 925)


def test_services_become_ready_or_are_ended_and_nothing_bad_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Report] = []
    workload, report = scenario.workload, Attempt.report

    def with_health(world: Any, name: str) -> dict[str, Any]:
        raw = workload(world, name)
        if raw["kind"] == "service":
            raw["health"] = {"command": "look", "interval": "500ms", "start": "2s", "restart": world.happens(0.8)}
        return raw

    def remembered(self: Attempt, now: int) -> Report:
        reports.append(report(self, now))
        return reports[-1]

    monkeypatch.setattr(scenario, "workload", with_health)
    monkeypatch.setattr(Attempt, "report", remembered)
    troubles = {seed: outcome.trouble for seed in SEEDS if (outcome := simulate(seed)).trouble}
    assert not troubles
    assert {report.ready for report in reports if report.state == "running"} == {True, False}
    assert [report for report in reports if report.cause == "unhealthy" and report.error == "the check failed"]
