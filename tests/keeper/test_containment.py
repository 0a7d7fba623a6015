"""No process outlives its run: whatever it does with its session, its parents and its environment."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from roost.keeper import cgroup
from roost.keeper.cgroup import PIDS_MAX, Cgroups
from roost.keeper.containment import Containment
from tests.keeper.keeper_harness import Client, KeeperHarness, alive, until

HERE = cgroup.detect()
needs_pens = pytest.mark.skipif(not HERE.pens, reason=f"cgroups cannot be used here: {HERE.reason or HERE.kind}")

# Two forks, a session of its own, and an environment that does not say whose it is.
SOON_S = 10.0  # for what takes milliseconds, and would never happen while another run of a shared group lives
HIDES = (
    "(env -i setsid sh -c 'sleep 100 & echo $! >pid; exec sleep 100' &);"
    "while [ ! -s pid ]; do sleep 0.01; done; cat pid"
)

GROUP = "cat /proc/self/cgroup"
# A machine whose only tree for this is of v2: the one of `pids` is gone in a mount namespace of the keeper's own.
ONLY_V2 = ("unshare", "-m", "sh", "-c", 'umount "$0" && exec "$@"')


def can_hide_pids() -> bool:
    mounted = cgroup.mounts_of(Path("/proc/self/mountinfo").read_text())
    return HERE.kind == "v1" and {"pids", "cgroup2"} <= set(mounted) and os.geteuid() == 0


@pytest.fixture(params=["this machine", "a tree of v2"])
def any_tree(request: pytest.FixtureRequest, harness: KeeperHarness) -> Client:
    """A keeper on what this machine has, and one with a tree of v2 only."""
    if request.param == "this machine":
        harness.keeper()
    elif can_hide_pids():
        place = cgroup.mounts_of(Path("/proc/self/mountinfo").read_text())["pids"][0]
        harness.keeper(prefix=(*ONLY_V2, place))
    else:
        pytest.skip("the tree of pids cannot be taken away here")
    return harness.client()


def group_of(harness: KeeperHarness, run: str) -> str:
    """Of a run that prints it, in the tree that is used."""
    until(lambda: harness.log(run).endswith(b"0::/\n") or b"\n0::" in harness.log(run), "its groups")
    groups = cgroup.groups_of(harness.log(run).decode())
    return next(path for path in (groups.get("pids", ""), groups[""]) if "-pen-" in path)


@needs_pens
def test_what_hides_from_its_run_ends_with_it(harness: KeeperHarness, any_tree: Client) -> None:
    any_tree.send(harness.order("a", HIDES))
    assert any_tree.ended("a")["code"] == 0
    until(lambda: not alive(int(harness.log("a"))), "the hidden process to end")


@needs_pens
def test_what_hides_ends_although_a_run_of_the_same_moment_goes_on(harness: KeeperHarness, any_tree: Client) -> None:
    runs = [harness.order(f"long{number}", f"echo $$; ({HIDES}); exec sleep 100") for number in range(3)]
    any_tree.send(runs[0], harness.order("a", HIDES), *runs[1:])
    any_tree.ended("a")
    until(lambda: not alive(int(harness.log("a"))), "the hidden process to end", SOON_S)
    others = [pid for run in runs for pid in harness.pids(run["id"], 2)]
    assert all(map(alive, others))
    any_tree.send({"do": "stop", "id": "long1", "grace_ms": 0})
    any_tree.ended("long1")
    until(lambda: not any(map(alive, others[2:4])), "all of the second run to end", SOON_S)
    assert all(map(alive, others[:2] + others[4:]))


@needs_pens
def test_each_run_has_a_group_and_groups_are_used_again(harness: KeeperHarness, any_tree: Client) -> None:
    any_tree.send(*(harness.order(f"r{number}", f"{GROUP}; exec sleep 100") for number in range(4)))
    assert len({group_of(harness, f"r{number}") for number in range(4)}) == 4
    for number in range(4):
        any_tree.send({"do": "stop", "id": f"r{number}", "grace_ms": 0})
        any_tree.ended(f"r{number}")
    seen = set()
    for number in range(10, 20):
        any_tree.send(harness.order(f"r{number}", GROUP))
        any_tree.ended(f"r{number}")
        seen.add(group_of(harness, f"r{number}"))
    assert len(seen) <= 4


@needs_pens
def test_all_steps_of_a_run_have_one_group(harness: KeeperHarness, any_tree: Client) -> None:
    any_tree.send(harness.order("a", f"{HIDES} >&2; {GROUP}", f"kill -0 $(cat pid) && {GROUP}"))
    assert any_tree.ended("a")["code"] == 0
    groups = [line for line in harness.log("a").decode().splitlines() if "-pen-" in line]
    assert len(groups) == 2 and len(set(groups)) == 1


@needs_pens
def test_the_number_of_processes_is_limited_per_run(harness: KeeperHarness, client: Client) -> None:
    if "pids" not in client.runs["enforces"]:
        pytest.skip("there is no tree of pids")
    client.send(harness.order("a", f"{GROUP}; exec sleep 100"), harness.order("b", "exec sleep 100"))
    limit = Path(f"{HERE.pens}/{group_of(harness, 'a').rpartition('/')[2]}/pids.max")
    assert 1 <= int(limit.read_text()) <= PIDS_MAX
    current = limit.with_name("pids.current")
    until(lambda: int(current.read_text()) <= 2, "its own process, and the keeper for a moment, to be alone")


@needs_pens
def test_what_hides_in_a_group_of_its_own_ends_with_its_run(harness: KeeperHarness, client: Client) -> None:
    if "pids" not in client.runs["enforces"] or os.geteuid() != 0:
        pytest.skip("a run can make no groups here")
    here = f"{HERE.pens}$(sed -n 's/.*:pids:{HERE.pens and cgroup_path()}//p' /proc/self/cgroup)"
    client.send(harness.order("a", f"mkdir {here}/inner; echo $$ >{here}/inner/cgroup.procs; {HIDES}"))
    assert client.ended("a")["code"] == 0
    until(lambda: not alive(int(harness.log("a"))), "the hidden process to end")


def cgroup_path() -> str:
    """The path of our own group in the tree of pids, as /proc shows it."""
    return cgroup.groups_of(Path("/proc/self/cgroup").read_text())["pids"].rstrip("/")


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


def pretend(directory: Path, **files: str) -> Path:
    """A directory with files of the kernel's names."""
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def test_where_no_group_can_be_made_nothing_is_contained(tmp_path: Path) -> None:
    empty = pretend(tmp_path / "no files of the kernel")
    for at in (Cgroups("none"), Cgroups("v1", pens=str(empty)), Cgroups("v2", pens=str(empty), pens_threaded=True)):
        made = Containment(at, "pen-")
        made.begin()
        assert not made.works and not made.limits_pids
        assert made.enter_empty() is None and not made.check()


def test_what_an_earlier_keeper_left_is_killed(tmp_path: Path) -> None:
    victim = subprocess.Popen(["sleep", "100"])
    base = pretend(tmp_path / "tree", tasks="")
    members = f"{os.getpid()}\n{victim.pid}\n"
    group = pretend(base / "pen-1", cgroup__procs=members, tasks="", pids__max="max")
    made = Containment(Cgroups("v1", pens=str(base)), "pen-")
    made.begin()
    assert victim.wait(10) == -signal.SIGKILL
    assert int((group / "pids.max").read_text()) in range(1, PIDS_MAX + 1), "and may be used again"
    assert made.works and made.limits_pids
