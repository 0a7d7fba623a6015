"""CI actions: pipelines one after the other and side by side through three real agents, each followed to its end."""

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import ROOST, Product

AGENTS = 3
SIDE_BY_SIDE = 3  # pipelines that are followed at a time, as if three people had pushed
CHAIN = 4  # actions that need each other
BOUND = 1_000.0  # a minute
ROUND_S_MAX = 300.0  # below 100 a minute: something hangs
LINE = re.compile(rb"(a\d+) +\| (first|second) of (\d+)")
TINY = {"rounds": 1, "actions": 8}


def measure(rounds: int = 4, actions: int = 100) -> list[Figure]:
    """Actions of two steps per minute, from the start of `roost ci run` to its end; and lines missing or repeated."""
    total = rounds * SIDE_BY_SIDE * actions
    with Product(agents=AGENTS, cpu="2") as product, tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        file = Path(folder) / "pipeline.yaml"
        file.write_text("\n".join(_pipeline(actions)))
        with Spent(*product.pids) as spent:
            wrong = sum(_round(product, file, actions) for _ in range(rounds))
        states = Counter(str(workload.state) for workload in product.client.workloads.list(label="pipeline=bench"))
    lost = wrong + total - states["succeeded"]
    per_node = f"{AGENTS} agents, {SIDE_BY_SIDE} pipelines of {actions} at a time"
    return [
        figure("actions_per_minute", total / spent.wall_s * 60, "actions", better="higher", bound=BOUND, actions=total,
               how=per_node, cpu_ms_per_action=round(spent.cpu_s / total * 1e3, 2)),
        figure("actions_lost", lost, "actions", bound=0.0),
    ]  # fmt: skip


def _pipeline(actions: int) -> Iterator[str]:
    yield "name: bench"
    yield "actions:"
    for number in range(actions):
        needs = f", needs: [a{number - 1}]" if number % CHAIN else ""
        yield f"  - {{name: a{number}{needs}, steps: [echo first of {number}, echo second of {number}]}}"


def _round(product: Product, file: Path, actions: int) -> int:
    """Run some pipelines side by side to their ends. Returns how many lines were missing, wrong or repeated."""
    env = os.environ | {"ROOST_URL": product.client.url, "ROOST_TOKEN": product.admin_token, "ROOST_CONFIG": ""}
    argv = [*ROOST, "ci", "run", "--no-send", str(file)]
    runs = [
        subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(SIDE_BY_SIDE)
    ]
    try:
        return sum(_wrong(run.communicate(timeout=ROUND_S_MAX)[0], run.returncode, actions) for run in runs)
    finally:
        for run in runs:
            run.kill()
            run.wait()


def _wrong(output: bytes, code: int, actions: int) -> int:
    expected = Counter((f"a{number}", step) for number in range(actions) for step in ("first", "second"))
    lines = output.splitlines()
    answer = [found.groups() for line in lines if (found := LINE.fullmatch(line))]
    seen = Counter((action.decode(), step.decode()) for action, step, number in answer if action == b"a" + number)
    return (expected - seen).total() + (seen - expected).total() + len(lines) - len(answer) + (code != 0)
