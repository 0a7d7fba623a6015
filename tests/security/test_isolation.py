"""A run of one project against all else of its node: real server, keeper and agent, as root and as another user.

Each path, process and socket that the product has at that moment is tried from inside (intruder.py).
"""

import errno
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roost.agent.isolation import chosen_level
from roost.cli.start.local_nodes import pids_of, running_keeper
from roost.client import Client
from roost.client.errors import ApiError
from tests.cli.serving import Served, serving, wait_until
from tests.keeper.slots.conftest import OTHER_USER, SYSTEM_PYTHON

DEVICES = ("full", "null", "ptmx", "pts/ptmx", "random", "stdin", "tty", "urandom", "zero")  # of root in a sandbox
CANARY = "canary-7c1f-of-another-project"
LEFT = f"written-by-the-intruder-{os.getpid()}"
OWN = f"own-{LEFT}"
PROCESSES = 64  # of one run
REPOSITORY = Path(__file__).resolve().parents[2]
INTRUDER = Path(__file__).with_name("intruder.py").read_text("utf-8")
WAIT_S = 60.0
VICTIM = f"echo {CANARY} >kept; echo {CANARY}; trap 'exit 3' TERM CONT USR1; while :; do sleep 1; done"


class IsolatedNode:
    """A Roost of one node, and a run of the project `victim` with a secret."""

    def __init__(self, served: Served, client: Client, *, as_root: bool) -> None:
        self.served = served
        self.client = client
        self.as_root = as_root
        self.home = served.home
        self.node = self.home / "nodes" / "node-1"
        self.names = 0

    def begin(self) -> None:
        done = self.served.roost("secrets", "set", "victim/key", stdin=CANARY.encode())
        assert done.returncode == 0, done.stderr
        self.submit("victim", "victim", ["sh", "-c", VICTIM], env={"KEY": {"secret": "key"}, "OPEN": CANARY})
        self.client.workloads.wait([("victim", "victim")], "running", WAIT_S)
        wait_until(lambda: CANARY.encode() in self.client.logs.read("victim", "victim"))

    def submit(self, project: str, name: str, command: list[str], **fields: Any) -> None:
        document = {"project": project, "name": name, "command": command, "resources": {"cpu": "100m"}, "retries": 0}
        self.client.workloads.submit(document | fields)

    def run(self, command: list[str], project: str = "web", **fields: Any) -> str:
        """The output of a run, which ends well."""
        self.names += 1
        name = f"run-{self.names}"
        self.submit(project, name, command, **fields)
        self.client.workloads.wait([(project, name)], timeout_s=WAIT_S)
        output = self.client.logs.read(project, name).decode()
        found = self.client.instances.get(project, name)
        assert found.state == "succeeded", (output, found.message)
        return output

    def victim_is_well(self) -> bool:
        found = self.client.instances.get("victim", "victim")
        return (found.state, found.attempt) == ("running", 1)

    def processes(self) -> list[int]:
        return [self.served.process.pid, running_keeper(self.node), *pids_of(self.node)]

    def targets(self) -> dict[str, Any]:
        """All that the product has made, and its processes."""
        found: dict[str, Any] = {"files": [], "folders": [str(self.home)], "sockets": [], "pids": self.processes()}
        for folder, folders, files in os.walk(self.home):
            found["folders"] += [f"{folder}/{name}" for name in folders]
            for name in files:
                path = Path(folder, name)
                kind = stat.S_IFMT(path.lstat().st_mode)
                found["sockets" if kind == stat.S_IFSOCK else "files"].append(str(path))
        return found | {"canary": CANARY, "leaves": LEFT, "may_see": ["nodes", "node-1", "work"]}


def opened(home: Path) -> list[str]:
    """A command that becomes another user, who can read Python and this repository wherever they are."""
    steps, shown = [], {Path(sys.base_prefix), REPOSITORY}
    closed = {
        path: next((above for above in reversed(path.parents) if not above.stat().st_mode & stat.S_IXOTH), None)
        for path in shown
    }
    for number, (path, cover) in enumerate(closed.items()):
        if cover is not None:
            steps.append(f"mkdir {home}/{number}; mount --bind {path} {home}/{number}")
    steps += [f"mount -t tmpfs -o mode=755 tmpfs {cover}" for cover in {*closed.values()} if cover is not None]
    for number, (path, cover) in enumerate(closed.items()):
        if cover is not None:
            steps.append(f"mkdir -p {path}; mount --move {home}/{number} {path}; rmdir {home}/{number}")
    change = f"exec setpriv --reuid={OTHER_USER} --regid={OTHER_USER} --clear-groups"
    script = "; ".join(["set -e", *steps, f'{change} env HOME={home}/user "$@"'])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


@pytest.fixture(scope="module", params=["root", "user"])
def node(request: pytest.FixtureRequest) -> Iterator[IsolatedNode]:
    as_root = request.param == "root"
    if os.geteuid() != 0 and as_root:
        pytest.skip("needs root: an agent with a user for each project")
    place = Path(tempfile.mkdtemp(prefix="roost-security-"))
    place.chmod(0o755)
    home = place / "user"
    home.mkdir(mode=0o700)
    prefix: list[str] = []
    if not as_root and os.geteuid() == 0:
        os.chown(home, OTHER_USER, OTHER_USER)
        prefix = opened(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_AGENT_ISOLATION", "")
        if chosen_level("")[0] != "sandbox":
            pytest.skip("this machine offers no sandboxes")
        options = ("--run-processes", str(PROCESSES), "--lease", "60000")
        with serving(home, "up", *options, prefix=prefix) as served, served.client() as client:
            made = IsolatedNode(served, client, as_root=as_root)
            made.begin()
            yield made
    shutil.rmtree(place)


def test_nothing_of_the_product_and_of_other_runs_is_within_reach(node: IsolatedNode) -> None:
    targets = node.targets()
    names = {Path(path).name for path in targets["files"] + targets["sockets"]}
    assert {"admin.token", "client.toml", "keeper.sock", "keeper.lock", "kept", "agent.log"} <= names, names
    assert any(name.endswith(".log") for name in names)
    assert len(targets["pids"]) >= 4, "server, keeper, agent and the other run"
    got = json.loads(node.run([SYSTEM_PYTHON, "-c", INTRUDER], env={"TARGETS": json.dumps(targets)}))
    assert got == {}
    assert list(node.home.rglob(LEFT)) == []
    assert node.victim_is_well()


def test_the_api_answers_a_run_only_with_a_token(node: IsolatedNode) -> None:
    script = """
import json, os, sys, urllib.error, urllib.request
for header in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer admin"}):
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/v1/nodes", headers=header), timeout=20)
        print("answered")
    except urllib.error.HTTPError as error:
        print(error.code)
print(json.dumps(dict(os.environ)))
"""
    url = node.client.url
    *answers, environment = node.run([SYSTEM_PYTHON, "-c", script, url]).splitlines()
    assert answers == ["401"] * 3
    token = (node.home / "admin.token").read_text().strip()
    assert token and token not in environment and "ROOST_ADMIN_TOKEN" not in environment


def test_a_fork_bomb_is_held_and_others_go_on(node: IsolatedNode) -> None:
    script = f"""
import os, sys, time
made = 0
for _ in range({PROCESSES * 3}):
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError as error:
        print("refused", error.errno, flush=True)
        break
    made += 1
print("made", made, flush=True)
time.sleep(1000)
"""
    node.submit("web", "bomb", [SYSTEM_PYTHON, "-c", script])
    wait_until(lambda: b"made" in node.client.logs.read("web", "bomb"))
    refused, made = node.client.logs.read("web", "bomb").decode().splitlines()
    assert refused == f"refused {errno.EAGAIN}" and 0 < int(made.split()[1]) <= PROCESSES
    assert node.run(["sh", "-c", "for i in 1 2 3; do /bin/true & done; wait; echo works"], "other") == "works\n"
    assert node.victim_is_well()
    node.client.workloads.cancel("web", "bomb")
    node.client.workloads.wait([("web", "bomb")], timeout_s=WAIT_S)


@pytest.mark.parametrize("way", ["setsid {0} &", "setsid -f {0}", "env -i setsid sh -c '{0} & {0}' &", "({0} &) &"])
def test_no_process_outlives_its_run(node: IsolatedNode, way: str) -> None:
    seconds = f"{os.getpid()}{len(way)}"
    node.run(["sh", "-c", f"{way.format(f'sleep {seconds}')} sleep 0.1"])
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if seconds in _text(path)] == []


def test_files_of_a_run_are_only_in_its_work_directory(node: IsolatedNode) -> None:
    places = "/ /etc /usr /var /var/lib /opt /srv /home /dev /proc /sys /sys/fs/cgroup /run /tmp /var/tmp /dev/shm"
    node.run(["sh", "-c", f"for place in {places} .; do echo x >$place/{OWN}; done 2>/dev/null; true"])
    assert [place for place in places.split() if Path(place, OWN).exists()] == []
    left = node.run(["sh", "-c", f"for place in {places} .; do ls $place/{OWN}; done 2>/dev/null; true"])
    assert left == "", "a later run of the same project"


def test_one_project_cannot_tell_that_another_has_run(node: IsolatedNode) -> None:
    """Shared memory, queues of messages and semaphores of System V are those of one run."""
    make = "import ctypes; c = ctypes.CDLL(None); print(c.shmget(4242, 4096, 0o1666) >= 0, c.msgget(4242, 0o1666) >= 0)"
    find = "import ctypes; c = ctypes.CDLL(None); print(c.shmget(4242, 0, 0), c.msgget(4242, 0))"
    assert node.run([SYSTEM_PYTHON, "-c", make]) == "True True\n"
    assert node.run([SYSTEM_PYTHON, "-c", find], "other") == "-1 -1\n"
    assert node.run([SYSTEM_PYTHON, "-c", find]) == "-1 -1\n"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_root_by_permission_has_no_capabilities_and_reaches_nothing_more(node: IsolatedNode) -> None:
    document = {"project": "ops", "name": "as-root", "command": "id -u", "run_as": "root"}
    with pytest.raises(ApiError, match="project ops may not run as root"):
        node.client.workloads.submit(document)
    assert node.served.roost("projects", "set", "ops", "--run-as", "root").returncode == 0
    if not node.as_root:
        node.client.workloads.submit(document)
        assert "run_as: cannot give runs the user root" in node.client.workloads.why("ops", "as-root").message
        node.client.workloads.cancel("ops", "as-root")
        return
    status = node.run(["sh", "-c", "id -u; grep -E 'Cap(Eff|Bnd)' /proc/self/status"], "ops", run_as="root")
    assert status.split() == ["0", "CapEff:", "0" * 16, "CapBnd:", "0" * 16]
    find = "for path in $(find /dev | sort); do test -b $path -o -c $path && echo $path; done; echo x >/dev/null"
    assert node.run(["sh", "-c", find], "ops", run_as="root").split() == [f"/dev/{name}" for name in DEVICES]
    paths = ("/proc/sysrq-trigger", "/proc/sys/vm/swappiness", "/proc/1/oom_score_adj", "/sys/kernel/uevent_helper")
    writes = " ".join(f"echo h >{path} && echo {path};" for path in paths)  # harmless, should it be possible
    script = f"({writes} mknod x b 8 0 && echo mknod; mount -t tmpfs t /mnt && echo mount) 2>/dev/null; true"
    assert node.run(["sh", "-c", script], "ops", run_as="root") == ""
    targets = node.targets()
    given = {"TARGETS": json.dumps(targets)}
    assert json.loads(node.run([SYSTEM_PYTHON, "-c", INTRUDER], "ops", run_as="root", env=given)) == {}
    assert list(node.home.rglob(LEFT)) == []
    assert node.victim_is_well()
