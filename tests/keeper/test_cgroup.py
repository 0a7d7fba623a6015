"""Limits on runs: with the cgroups of this machine, and what is written where for those of another kind."""

import binascii
import re
import signal
import subprocess
from pathlib import Path

import pytest

from roost.keeper import cgroup
from roost.keeper.cgroup import Cgroups, Group
from tests.keeper.keeper_harness import Client, KeeperHarness, alive, until

MIB = 1 << 20
MEMORY_MAX = 1  # of the usage in the end of a run
HERE = cgroup.detect()

needs_cgroups = pytest.mark.skipif(
    not (HERE.cpu and HERE.memory), reason=f"cgroups cannot be used here: {HERE.reason or HERE.kind}"
)


def python(script: str) -> list[str]:
    return ["python3", "-c", script]


def groups(harness: KeeperHarness) -> list[Path]:
    """The groups that exist for runs of this harness's keepers: named after its directory, below the keeper's own."""
    at = cgroup.detect(f"/proc/{harness.keepers[-1].pid}")
    name = f"roost-{binascii.crc32(bytes(harness.dir)):08x}-[0-9]*"
    return [path for base in {at.cpu, at.memory} for path in Path(base).glob(name) if path.is_dir()]


@needs_cgroups
def test_a_run_that_takes_too_much_memory_is_killed_and_that_is_reported(
    harness: KeeperHarness, client: Client
) -> None:
    script = f"import os; print(os.getpid(), flush=True); x = [bytearray({MIB}) for _ in range(400)]"
    client.send(harness.order("a", python(script), limits={"memory": 48 * MIB}))
    assert "limits" not in client.next("started", "a")
    ended = client.ended("a")
    assert (ended["cause"], ended["signal"], ended["oom"]) == ("exited", signal.SIGKILL, True)
    assert 40 * MIB <= ended["usage"][MEMORY_MAX] <= 48 * MIB
    client.send(harness.order("b", python(script), limits={"memory": 1024 * MIB}))
    ended = client.ended("b")
    assert (ended["code"], ended["oom"]) == (0, False)
    assert ended["usage"][MEMORY_MAX] > 400 * MIB


@needs_cgroups
def test_a_child_that_is_killed_for_memory_is_reported_as_well(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", f"python3 -c 'x = bytearray({200 * MIB})'; exit 5", limits={"memory": 48 * MIB}))
    ended = client.ended("a")
    assert (ended["code"], ended["oom"]) == (5, True)


@needs_cgroups
@pytest.mark.serial
def test_a_run_that_may_use_a_fifth_of_a_core_gets_a_fifth(harness: KeeperHarness, client: Client) -> None:
    # On a busy machine it gets less than its fifth: it goes on until it has had some, and compares.
    spin = """
import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 1 or time.process_time() < used + 0.05: pass
print((time.process_time() - used) / (time.monotonic() - began))
"""
    client.send(harness.order("a", "true", python(spin), limits={"cpu_m": 200}))
    ended = client.ended("a")
    assert ended["code"] == 0
    assert float(harness.log("a")) < 0.32


@needs_cgroups
def test_every_process_is_born_inside_and_the_keeper_stays_outside(harness: KeeperHarness, client: Client) -> None:
    keeper = harness.keepers[0].pid
    script = "cat /proc/self/cgroup; echo $$; exec sleep 100"
    client.send(harness.order("a", "cat /proc/self/cgroup", script, limits={"cpu_m": 500, "memory": 64 * MIB}))
    client.next("step", "a")
    pid = client.next("step", "a")["pid"]
    until(lambda: harness.log("a").endswith(f"\n{pid}\n".encode()), "the second step to speak")
    made = groups(harness)
    text = harness.log("a").decode()
    assert len(re.findall(r"roost-\w+-\d", text)) == 2 * (1 if HERE.kind == "v2" else 2)
    assert all(str(pid) in (group / "cgroup.procs").read_text().split() for group in made)
    assert not re.findall(r"roost-\w+-\d", Path(f"/proc/{keeper}/cgroup").read_text())
    client.send({"do": "stop", "id": "a"})
    assert client.ended("a")["signal"] == signal.SIGTERM
    until(lambda: groups(harness) == [], "the groups to be removed")


@needs_cgroups
def test_a_run_that_left_the_process_group_is_still_in_the_cgroup(harness: KeeperHarness, client: Client) -> None:
    daemon = (
        "env -i setsid sh -c 'echo $$ >pid; exec sleep 100' & while [ ! -s pid ]; do sleep 0.01; done; cat pid; exit 4"
    )
    client.send(harness.order("a", daemon, limits={"memory": 64 * MIB}))
    assert client.ended("a")["code"] == 4
    assert not alive(int(harness.log("a")))
    until(lambda: groups(harness) == [], "the groups to be removed")


@needs_cgroups
def test_a_program_that_is_missing_leaves_no_group_and_the_keeper_where_it_was(
    harness: KeeperHarness, client: Client
) -> None:
    keeper = Path(f"/proc/{harness.keepers[0].pid}/cgroup")
    before = without_pens(keeper.read_text())
    client.send(harness.order("a", ["/no/such/program"], limits={"memory": 64 * MIB, "cpu_m": 100}))
    assert "no such program" in client.ended("a")["error"]
    assert without_pens(keeper.read_text()) == before
    until(lambda: groups(harness) == [], "the groups to be removed")


def without_pens(text: str) -> list[str]:
    """Where a keeper is, but for the group of a run that it entered (containment.py)."""
    return [re.sub(r"(/roost-\w+-pen-\w+)+$", "", line).rstrip("/") for line in text.splitlines()]


@needs_cgroups
def test_the_groups_of_a_killed_keeper_are_removed_by_the_next(harness: KeeperHarness, client: Client) -> None:
    keeper = harness.keepers[0]
    client.send(harness.order("a", "exec sleep 100", limits={"memory": 64 * MIB, "cpu_m": 100}))
    client.next("started")
    left = groups(harness)
    assert left
    keeper.kill()
    keeper.wait()
    harness.keeper()
    assert [path for path in left if path.exists()] == []


@needs_cgroups
def test_without_cgroups_a_run_runs_and_says_so(harness: KeeperHarness) -> None:
    hide = "grep -oE '/sys/fs/cgroup[^ ]*' /proc/self/mounts | sort -r | xargs -n1 umount -l && exec \"$@\""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs root, to hide the cgroups from the keeper")
    harness.keeper(prefix=("unshare", "-m", "sh", "-c", hide, "sh"))
    client = harness.client()
    client.send(harness.order("a", "exit 4", limits={"cpu_m": 100}), harness.order("b", "exit 5"))
    message = "none: cpu cannot be limited: no cgroup controller for cpu is mounted"
    assert client.next("started", "a")["limits"].startswith(message)
    assert client.ended("a")["code"] == 4
    client = harness.client()
    assert client.runs["runs"][0]["limits"].startswith(message)
    client.send(harness.order("c", "echo runs", limits={"cpu_m": 100, "required": True}))
    assert client.ended("c")["error"].startswith(f"limits are required: {message}")
    assert harness.log("c") == b""


def test_a_machine_without_controllers_says_so(tmp_path: Path) -> None:
    found = cgroup.detect(str(pretend(tmp_path, "0::/\n", "31 23 0:28 / /nowhere rw - cgroup2 cgroup2 rw\n")))
    assert found.kind == "none"
    assert found.missing(100, 0) == "cpu cannot be limited: " + found.reason
    assert found.missing(0, 0) == ""
    assert Group(found, "x", 100, 100).dirs == ()


def pretend(tmp_path: Path, groups: str, mounts: str) -> Path:
    """The files of a process that lives in these groups."""
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(mounts)
    return tmp_path


def test_v2_is_found_by_its_controllers(tmp_path: Path) -> None:
    top = tmp_path / "cg"
    own = top / "service"
    own.mkdir(parents=True)
    (top / "cgroup.controllers").write_text("cpu io memory pids\n")
    mount = f"31 23 0:28 / {top} rw,relatime - cgroup2 cgroup2 rw\n"
    found = cgroup.detect(str(pretend(tmp_path, "0::/service\n", mount)))
    assert (found.kind, found.cpu, found.home) == ("v2", str(top / "roost"), str(own)), (
        "nothing was handed to the service"
    )
    (own / "cgroup.controllers").write_text("cpu memory\n")
    found = cgroup.detect(str(pretend(tmp_path, "0::/service\n", mount)))
    assert (found.kind, found.cpu, found.memory, found.home) == ("v2", str(own), str(own), str(own))
    (own / "roost-keeper").mkdir()
    found = cgroup.detect(str(pretend(tmp_path, "0::/service/roost-keeper\n", mount)))
    assert (found.cpu, found.home) == (str(own), str(own / "roost-keeper"))


def test_a_group_below_a_mounted_part_is_found(tmp_path: Path) -> None:
    """As inside a container, where only a part of the tree is mounted."""
    (tmp_path / "cpu" / "mine").mkdir(parents=True)
    mount = f"32 31 0:29 /docker/1 {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    found = cgroup.detect(str(pretend(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/docker/1/mine\n", mount)))
    assert (found.kind, found.cpu, found.memory) == ("v1", str(tmp_path / "cpu" / "mine"), "")
    assert found.missing(1, 1) == "memory cannot be limited: no cgroup controller for memory is mounted"


def test_what_is_written_for_v2(tmp_path: Path) -> None:
    home = tmp_path / "roost-keeper"
    home.mkdir()
    group = Group(Cgroups("v2", cpu=str(tmp_path), memory=str(tmp_path), home=str(home)), "run", 1500, 64 * MIB)
    names = ["cgroup.procs", "cpu.max", "memory.max", "memory.swap.max", "memory.events", "memory.peak"]
    for name in names:
        (tmp_path / "run" / name).write_text("")
    (home / "cgroup.procs").write_text("")

    def content() -> list[str]:
        return [(tmp_path / "run" / name).read_text() for name in names[:4]]

    group.enter()
    assert content() == ["0", "max 100000", "max", "max"]
    group.leave()
    assert (home / "cgroup.procs").read_text() == "0"
    (tmp_path / "run" / "cgroup.procs").write_text("")
    for name in names[1:4]:
        (tmp_path / "run" / name).write_text("")
    assert group.apply()
    assert content() == ["", "150000 100000", str(64 * MIB), "0"]
    (tmp_path / "run" / "memory.events").write_text("low 0\noom 1\noom_kill 0\noom_group_kill 0\n")
    assert not group.out_of_memory()
    (tmp_path / "run" / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    (tmp_path / "run" / "memory.peak").write_text("4096\n")
    assert group.out_of_memory() and group.memory_max() == 4096
    assert group.kill()
