"""Chaos on each store, and two deliberate defects that its checks must notice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from roost_lab.chaos.plan import STORES, Fault
from roost_lab.chaos.run import ChaosReport, run_chaos
from roost_lab.components import Missing

SECONDS = 25.0
SEED = 11

# An agent that tells its keeper a lease that never ends: fenced work goes on when its node is given up.
NO_FENCING = """
from roost.drivers.process import ProcessDriver
lease = ProcessDriver.lease
ProcessDriver.lease = lambda self, until_ms: lease(self, until_ms + 600_000)
"""
# An agent that drops the first byte of every chunk of a log but the first.
DROPPED_BYTES = """
from roost.agent.logs.spool import Spool
read = Spool._read
def careless(self, wanted):
    data, size = read(self, wanted)
    return data[1 if wanted.offset else 0:], size
Spool._read = careless
"""


def chaos(store: str, seconds: float, **given: object) -> ChaosReport:
    try:
        return run_chaos(store, SEED, seconds, print, **given)  # type: ignore[arg-type]
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("store", STORES)
def test_nothing_is_lost_doubled_overlapped_or_short(store: str) -> None:
    report = chaos(store, SECONDS)
    assert {result.check: result.wrong for result in report.checks if result.wrong} == {}, report.evidence
    assert report.counts["accepted"] > 10 and report.counts["log_bytes"] > 10_000
    assert sum(not done.cannot for done in report.faults) >= 4
    assert not report.evidence


def broken_agents(folder: Path, code: str) -> dict[str, str]:
    """Python runs this at the start of every agent. Keepers do not look there."""
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


def test_a_log_byte_that_is_dropped_is_noticed(tmp_path: Path) -> None:
    report = chaos("sqlite", 6.0, faults=[], agent_environment=broken_agents(tmp_path, DROPPED_BYTES))
    assert [result.check for result in report.checks if result.wrong] == ["log bytes"]
    kept = Path(report.evidence)
    assert (kept / "evidence.json").exists() and (kept / "report.json").exists() and list(kept.glob("ledger/*.ledger"))
    shutil.rmtree(kept)


def test_fenced_work_that_outlives_its_lease_is_noticed(tmp_path: Path) -> None:
    stops = [Fault(8.0, "stop_agent", 0, 9.0)] * 2  # the first node, and the first of the others
    report = chaos("sqlite", 18.0, rate=8.0, faults=stops, agent_environment=broken_agents(tmp_path, NO_FENCING))
    assert [result.check for result in report.checks if result.wrong] == ["overlaps"]
    shutil.rmtree(report.evidence)


def test_a_run_that_is_terminated_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "roost", "lab", "chaos", "--store", "sqlite", "--seconds", "600"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert any("n0" in line or "s0" in line for line in running.stderr), "a fault begins"
        running.terminate()
        rest = running.stderr.read()
        assert running.wait(60) == 130, rest
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert not [line for line in command_lines() if str(tmp_path).encode() in line]


def command_lines() -> list[bytes]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_bytes())
        except OSError:
            continue  # it has ended
    return found
