"""roost lab chaos: what it prints and how it ends, from a report."""

from typing import Any

import pytest
from click.testing import CliRunner, Result
from roost_lab.chaos import run as chaos_run
from roost_lab.chaos.checks import CheckResult
from roost_lab.chaos.nemesis import FaultDone
from roost_lab.chaos.plan import Fault
from roost_lab.chaos.run import ChaosReport
from roost_lab.components import Missing

from roost.cli.tools.lab import STORES, lab


def run_with(monkeypatch: pytest.MonkeyPatch, wrong: list[str], *options: str) -> Result:
    def chaos(store: str, seed: int, seconds: float, tell: Any, **_: Any) -> ChaosReport:
        if store == "etcd":
            raise Missing("etcd is not installed")
        tell("kill_server (s0)")
        faults = [FaultDone(Fault(2.0, "kill_server", 1, 0.5), "s0"), FaultDone(Fault(3, "clock_jump", 1, 0), "", "no")]
        checks = [CheckResult("runs", 1_000, wrong)]
        return ChaosReport(store, seed, seconds, 9.0, faults, {"log_bytes": 5}, checks, "/kept" if wrong else "")

    monkeypatch.setattr(chaos_run, "run_chaos", chaos)
    return CliRunner().invoke(lab, ["chaos", "--seed", "7", "--seconds", "20", *options])


def test_stores_are_those_of_the_lab() -> None:
    from roost_lab.chaos import plan

    assert STORES == plan.STORES


def test_a_good_run_prints_counts_and_what_could_not_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_with(monkeypatch, [], "--store", "sqlite")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "sqlite: 1 faults in 20 s, 9 s in all",
        "5 log bytes",
        "clock_jump was not done: no",
        "CHECK  CHECKED  WRONG",
        "runs   1,000    0",
    ]


def test_a_failed_check_is_exit_code_1_with_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_with(monkeypatch, [f"job-{number} is lost" for number in range(12)], "--store", "sqlite")
    assert result.exit_code == 1
    assert "runs: job-9 is lost\nruns: and 2 more\nthe evidence is in /kept\n" in result.stdout


def test_a_store_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_with(monkeypatch, [], "--json")
    assert (result.exit_code, result.stdout.count('"store"')) == (0, 2)
    assert "etcd: skipped: etcd is not installed" in result.stderr
