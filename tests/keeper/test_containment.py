"""No process outlives its run: whatever it does with its session, its parents and its environment."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.keeper import cgroup
from roost.keeper.cgroup import Cgroups
from roost.keeper.containment import PIDS_MAX, Containment
from tests.keeper.keeper_harness import Client, KeeperHarness, alive, until

HERE = cgroup.detect()
needs_pens = pytest.mark.skipif(not HERE.pens, reason=f"cgroups cannot be used here: {HERE.reason or HERE.kind}")

# Two forks, a session of its own, and an environment that does not say whose it is.
HIDES = (
    "(env -i setsid sh -c 'sleep 100 & echo $! >pid; exec sleep 100' &);"
    "while [ ! -s pid ]; do sleep 0.01; done; cat pid"
)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[KeeperHarness]:
    harness = KeeperHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def client(harness: KeeperHarness) -> Client:
    harness.keeper()
    return harness.client()


def group_of(pid: int) -> str:
    """In the hierarchy of which a whole group can be killed, or another that is used."""
    groups = cgroup.groups_of(Path(f"/proc/{pid}/cgroup").read_text())
    return groups.get("") or groups["pids"]


@needs_pens
def test_what_hides_from_its_run_ends_with_it(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", HIDES))
    assert client.ended("a")["code"] == 0
    until(lambda: not alive(int(harness.log("a"))), "the hidden process to end")


@needs_pens
def test_a_run_that_began_at_another_moment_goes_on(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("long", "echo $$; exec sleep 100"))
    until(lambda: harness.log("long"), "the first run")
    pid, keeper = int(harness.log("long")), harness.keepers[0].pid
    until(lambda: group_of(keeper) != group_of(pid), "the keeper to move on")
    client.send(harness.order("a", HIDES))
    client.ended("a")
    until(lambda: not alive(int(harness.log("a"))), "the hidden process to end")
    assert alive(pid)


@needs_pens
def test_groups_are_used_again(harness: KeeperHarness, client: Client) -> None:
    keeper, seen = harness.keepers[0].pid, set()
    for number in range(6):
        before = group_of(keeper)
        seen.add(before)
        client.send(harness.order(f"r{number}", "true"))
        client.ended(f"r{number}")
        until(lambda before=before: group_of(keeper) != before, "the keeper to move on")
    assert len(seen) <= 3


@needs_pens
def test_a_keeper_ends_what_hid_from_the_keeper_before_it(harness: KeeperHarness) -> None:
    keeper = harness.keeper()
    harness.client().send(harness.order("a", f"{HIDES}; exec sleep 100"))
    until(lambda: harness.log("a"), "the hidden process")
    hidden = int(harness.log("a"))
    os.kill(keeper.pid, signal.SIGKILL)
    keeper.wait()
    assert alive(hidden)
    harness.keeper()
    until(lambda: not alive(hidden), "the hidden process to end")


@needs_pens
def test_the_greeting_tells_what_is_enforced(harness: KeeperHarness, client: Client) -> None:
    able = client.runs["enforces"]
    assert "cleanup" in able
    assert ("cpu" in able, "memory" in able) == (bool(HERE.cpu), bool(HERE.memory))


def pens(*places: Path) -> Containment:
    return Containment(Cgroups("v1", pens=tuple(map(str, places))), "pen-")


def pretend(directory: Path, **files: str) -> Path:
    """A directory with files of the kernel's names."""
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def test_where_no_group_can_be_made_nothing_is_contained(tmp_path: Path) -> None:
    for made in (pens(), pens(pretend(tmp_path / "read-only" / "tree"))):  # a directory without cgroup.procs
        made.begin()
        assert made.current is None and not made.limits_pids
        assert made.started() == () and not made.check(0) and made.end()


def test_without_a_kill_file_the_processes_are_killed_one_by_one(tmp_path: Path) -> None:
    victim = subprocess.Popen(["sleep", "100"])
    base = tmp_path / "tree"
    group = pretend(base / "pen-1", cgroup__procs=f"{os.getpid()}\n{victim.pid}\n", pids__max="max")
    made = pens(base)
    made.begin()
    assert victim.wait(10) == -signal.SIGKILL
    assert int((group / "pids.max").read_text()) in range(1, PIDS_MAX + 1), "and may be used again"
    assert made.current is not None and made.limits_pids
