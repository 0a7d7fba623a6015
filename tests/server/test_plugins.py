"""Plug-ins by entry point: loaded before anything is decided, and reported by name when they cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOST = [sys.executable, "-m", "roost"]
DEADLINE_S = 60
GOOD = """
from roost.core.placement.strategies import Strategy, pick_best
def register(registry):
    registry.add_strategy(Strategy("mine", (), pick_best))
"""
FLEET = """
strategy: mine
nodes: [{name: a, cpu: 4}]
workloads: [{name: x}]
"""


def plugin(folder: Path, source: str, value: str = "roost_mine:register", name: str = "mine") -> dict[str, str]:
    """An installed package as importlib sees it; the environment in which it is."""
    (folder / "roost_mine.py").write_text(source)
    info = folder / f"roost_{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: roost-{name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[roost.plugins]\n{name} = {value}\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def roost(env: dict[str, str], *message: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ROOST, *message], env=env, input=given, capture_output=True, text=True, timeout=DEADLINE_S)


def test_a_strategy_of_a_plug_in_is_one_like_others(tmp_path: Path) -> None:
    done = roost(plugin(tmp_path, GOOD), "sim", "place", "-", given=FLEET)
    assert (done.returncode, "mine" in done.stdout) == (0, True), done.stderr
    done = roost(dict(os.environ), "sim", "place", "-", given=FLEET)
    assert done.returncode == 2
    assert "there is no strategy 'mine'" in done.stderr


BROKEN = {
    "one that cannot be imported": ("import nothing_of_that_name", "nothing_of_that_name"),
    "one that fails": ("def register(registry): raise ValueError('no licence')", "no licence"),
    "one that fails without words": ("def register(registry): raise KeyError", "KeyError"),
    "one without the function": ("x = 1", "register"),
    "one that takes a name": (GOOD.replace('"mine"', '"best_fit"'), "there is a strategy of this name already"),
    "one that asks for more": ("def register(registry, more): pass", "more"),
}


@pytest.mark.parametrize("source, message", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_plug_in_is_reported_by_name_and_nothing_starts(tmp_path: Path, source: str, message: str) -> None:
    done = roost(plugin(tmp_path, source), "sim", "place", "-", given=FLEET)
    assert done.returncode == 2
    assert "the plug-in mine of roost-mine 1.2 (roost_mine:register) cannot be loaded" in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_does_not_start_with_a_broken_plug_in(tmp_path: Path) -> None:
    env = plugin(tmp_path, "import nothing_of_that_name")
    done = roost(env, "server", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert done.returncode != 0
    assert "the plug-in mine of roost-mine 1.2" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_servers_strategy_is_checked_after_plug_ins_are_loaded(tmp_path: Path) -> None:
    env = plugin(tmp_path, GOOD)
    bad = roost(env | {"SCHEDULING_STRATEGY": "yours"}, "server", "--data", str(tmp_path / "data"))
    assert bad.returncode == 2
    assert "there is no strategy 'yours'" in bad.stderr and "mine" in bad.stderr
