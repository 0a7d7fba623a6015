"""A round of recovery on each store, and a deliberate defect that the comparison must notice."""

import shutil
from pathlib import Path

import pytest
from roost_lab.components import Missing
from roost_lab.recovery.plan import STORES
from roost_lab.recovery.run import RecoveryReport, run_recovery

from tests.lab.chaos.test_chaos import DROPPED_BYTES, broken_agents

SEED = 3
LOG_MAX = 4 << 20


def recover(store: str, **given: object) -> RecoveryReport:
    try:
        return run_recovery(store, SEED, 1, print, log_bytes_max=LOG_MAX, **given)  # type: ignore[arg-type]
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("store", STORES)
def test_after_kills_all_bytes_are_served_or_refused_with_the_reason(store: str) -> None:
    report = recover(store)
    assert [line for done in report.rounds for line in done.wrong] == [], report.evidence
    assert report.is_good and report.counts["kills"] >= 1 and not report.evidence
    if store != "memory":  # it forgets what was pending
        assert report.counts["jobs"] >= 1 and report.counts["logs whole"] >= 1


def test_bytes_that_an_agent_drops_are_noticed(tmp_path: Path) -> None:
    report = recover("sqlite", agent_environment=broken_agents(tmp_path, DROPPED_BYTES))
    assert not report.is_good and "its log differs after byte" in report.rounds[0].wrong[0]
    shutil.rmtree(report.evidence)
