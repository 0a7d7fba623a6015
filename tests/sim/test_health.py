"""Health checks in the simulated world: runs become ready after a while, some never do and are ended."""

import pytest

from roost.agent.actor import Attempt
from roost.model.protocol import Report
from roost.sim.checks import oracle
from roost.sim.run import simulate

SEEDS_MAX = 60


def test_runs_become_ready_or_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, bool]] = set()
    report = Attempt.report

    def remembered(self: Attempt, now: int) -> Report:
        answer = report(self, now)
        if self.health is not None:
            seen.add((answer.cause or answer.state, answer.ready))
        return answer

    monkeypatch.setattr(Attempt, "report", remembered)
    monkeypatch.setattr(oracle, "NEVER_WELL", 0.5)
    wanted = {("running", False), ("running", True), ("unhealthy", False)}
    for seed in range(SEEDS_MAX):
        simulate(seed)
        if wanted <= seen:
            return
    raise AssertionError(f"in {SEEDS_MAX} seeds only {sorted(seen)}")
