"""roost drain --dry-run, cordon and uncordon on two real nodes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.cli.common.exit_codes import NOT_PLACED, USAGE
from tests.cli.serving import DEADLINE_S, ROOST, Served, up


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up"), agents=2) as served:
        yield served


def test_a_drain_is_tried_a_node_cordoned_and_uncordoned(two: Served) -> None:
    assert b"node-1 is cordoned" in two.roost("cordon", "node-1").stderr
    assert b"cordoned" in two.roost("nodes").stdout
    assert two.roost("run", "-d", "--name", "held", "--cpu", "100m", "--", "sleep", "60").returncode == 0
    with two.client() as client:
        client.workloads.wait([("default", "held")], "running", DEADLINE_S)
        assert client.instances.get("default", "held").node == "node-2"
    stays = two.roost("drain", "node-2", "--dry-run")
    assert (stays.returncode, b"it may finish" in stays.stdout) == (0, True)
    stuck = two.roost("drain", "node-2", "--now", "--dry-run")
    assert stuck.returncode == NOT_PLACED
    assert b"held.0" in stuck.stdout and b"nowhere" in stuck.stdout and b"node node-1 is cordoned" in stuck.stdout
    assert b"1 of 1 would have no place; nothing was changed" in stuck.stderr
    waits = two.roost("drain", "node-2", "--dry-run", "--deadline", "10m")
    assert (waits.returncode, b"if it has not finished by then" in waits.stdout) == (0, True)
    assert b"node-1 is ready" in two.roost("uncordon", "node-1").stderr
    goes = two.roost("drain", "node-2", "--now", "--dry-run", "--json")
    assert goes.returncode == 0
    assert [(item["name"], item["node"]) for item in json.loads(goes.stdout)["leaving"]] == [("held", "node-1")]
    assert b"by least_loaded" in two.roost("drain", "node-2", "--now", "--dry-run").stdout
    assert b"nothing runs on node node-1" in two.roost("drain", "node-1", "--dry-run").stderr
    assert json.loads(two.roost("nodes", "--json").stdout)[1]["status"] == "ready"
    assert two.roost("cancel", "held").returncode == 0


def test_a_drain_waits_until_the_jobs_have_finished_and_prints_what_is_left(two: Served, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f"until [ -e {gate} ]; do sleep 0.05; done; echo finished"
    assert two.roost("cordon", "node-1").returncode == 0
    assert two.roost("run", "-d", "--name", "slow", "--cpu", "100m", "--", "sh", "-c", command).returncode == 0
    with two.client() as client:
        client.workloads.wait([("default", "slow")], "running", DEADLINE_S)
        assert b"node-2 is draining" in two.roost("drain", "node-2", "--no-wait").stderr
        assert client.instances.get("default", "slow").state == "running"
        argv = [*ROOST, "drain", "node-2"]
        with subprocess.Popen(argv, env=two.env, stderr=subprocess.PIPE) as waiting:
            assert waiting.stderr is not None
            assert b"1 instance left: slow.0 running for" in waiting.stderr.readline()
            gate.touch()
            assert waiting.stderr.readline() == b"roost: node node-2 is drained\n"
            assert waiting.wait(DEADLINE_S) == 0
        assert client.instances.get("default", "slow").state == "succeeded"
    assert two.roost("uncordon", "node-1").returncode == 0
    assert two.roost("uncordon", "node-2").returncode == 0


def test_now_and_a_deadline_exclude_each_other(two: Served) -> None:
    refused = two.roost("drain", "node-1", "--now", "--deadline", "1m")
    assert (refused.returncode, b"not both" in refused.stderr) == (USAGE, True)
