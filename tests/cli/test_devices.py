"""GPUs, ports and taints from flags to the environment of a run, placed by the strategy of a plug-in."""

import json
from pathlib import Path

import pytest

from roost.model.limits import PORT_ANY_FIRST, PORT_ANY_LAST
from tests.cli.serving import up
from tests.server.test_plugins import GOOD, plugin, roost

DOCUMENT = """
name: train
command: echo "$CUDA_VISIBLE_DEVICES / $ROOST_GPUS / $PORT_HTTP / $PORT_ANY_ONE / $ROOST_PORTS"; sleep 300
kind: service
resources: {cpu: 50m, gpu: 0.5}
ports: {http: 8080, any-one: 0}
placement: {tolerate: [gpu], gpu_model: Tesla T4}
---
name: shy
command: "true"
resources: {cpu: 50m}
"""


def test_from_flags_to_the_environment_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PYTHONPATH", plugin(tmp_path / "packages", GOOD)["PYTHONPATH"])
    monkeypatch.setenv("SCHEDULING_STRATEGY", "mine")
    flags = ("--gpu", "2", "--gpu-model", "Tesla T4", "--taint", "gpu=yes", "--taint", "old:soft")
    with up(tmp_path / "home", *flags) as served:
        status = json.loads(served.roost("status", "--json").stdout)
        assert status["strategy"] == "mine" and "mine" in status["strategies"]
        assert served.roost("apply", "-f", "-", stdin=DOCUMENT.encode()).returncode == 4, "one of them has no place"
        assert served.roost("wait", "train", "--for", "running", "--timeout", "30s").returncode == 0
        port = json.loads(served.roost("show", "train.0", "--json").stdout)["ports"]["any-one"]
        assert PORT_ANY_FIRST <= port <= PORT_ANY_LAST
        ports = f"http=8080,any-one={port}"
        assert served.roost("logs", "train").stdout.decode() == f"0 / 0 / 8080 / {port} / {ports}\n"
        shown = served.roost("show", "train").stdout.decode()
        assert "GPUs:       0\n" in shown and f"Ports:      http 8080, any-one {port}\n" in shown
        node = served.roost("nodes", "show", "node-1").stdout.decode()
        assert "Taints:    gpu=yes, old:soft\n" in node
        assert "GPUs:      Tesla T4 (0: 0.5 free, 1: 1 free)\n" in node
        assert f"Ports:     8080, {port} allocated\n" in node
        detail = json.loads(served.roost("show", "train.0", "--json").stdout)
        assert (detail["devices"], detail["ports"]) == ([0], {"http": 8080, "any-one": port})
        assert detail["decision"]["strategy"] == "mine"
        why = json.loads(served.roost("why", "shy", "--json").stdout)
        assert any("taint gpu=yes is not tolerated" in blocker["reason"] for blocker in why["blockers"])


def test_a_bad_taint_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    done = roost({}, "up", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--taint", "gpu:NoExecute")
    assert done.returncode == 2
    assert "--taint[0]: a taint is KEY or KEY=VALUE" in done.stderr
    assert not (tmp_path / "nodes").exists()
