"""Every benchmark runs to its end at a tiny size. The figures mean nothing here: only that they are made."""

import json
import math
import subprocess
import sys
from importlib import import_module

import pytest
from roost_lab.components import Missing

from roost.cli.tools.bench import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_group_runs_to_its_end(name: str) -> None:
    group = import_module(f"roost_lab.bench.{name}")
    try:
        figures = group.measure(**group.TINY)
    except Missing as missing:
        pytest.skip(str(missing))
    assert figures and all(math.isfinite(item.value) for item in figures), figures
    assert not [item for item in figures if item.figure == "actions_lost" and item.value]


def test_standard_output_has_nothing_but_figures() -> None:
    command = [sys.executable, "-m", "roost", "bench", "run", "--tiny", "durable"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "measuring durable ...\n")
    figures = [json.loads(line)["figure"] for line in done.stdout.splitlines()]
    assert figures == ["durable_transitions_per_s", "sqlite_rows_per_s", "durable_transitions_ratio"]
