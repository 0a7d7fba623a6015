"""roost demo: a guided tour on a small Roost of its own, with a machine that really dies. Leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from roost.cli.outcome import Failure
from roost.cli.tour import Tour

if TYPE_CHECKING:
    from roost.client import Client

NODES = 3
LEASE_MS = 2_000  # half of the usual: a tour should not be all waiting
START_S_MAX = 30.0
MOVE_S_MAX = 30.0
STOP_S_MAX = 30.0  # keepers give work and agents some seconds each

STEPS = """\
name: build
resources: {cpu: 100m}
steps:
  - run: echo "step 1 on $ROOST_NODE" > notes; cat notes
  - run: echo "step 2 sees what step 1 wrote:"; cat notes
"""
ARRAY = """\
name: render
count: 12
resources: {cpu: 100m}
command: echo frame $ROOST_INDEX done on $ROOST_NODE
"""
SERVICE = """\
name: web
kind: service
count: 2
resources: {cpu: 100m}
command: while true; do date; sleep 1; done
"""


@click.command(
    epilog="""\b
Examples:
  roost demo
  make demo
\b
Next: `roost up`, and try the same by hand.
"""
)
def demo() -> None:
    """Watch Roost place work, lose a machine and recover, in under a minute.

    Starts a server and three local nodes in a temporary directory, uses them as you would, kills one of the nodes with
    everything on it, and cleans up. Other Roosts on this machine are not touched.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    home = Path(tempfile.mkdtemp(prefix="roost-demo-"))
    began = time.monotonic()
    up: subprocess.Popen[bytes] | None = None
    try:
        up = _start(home)
        _guide(Tour(home, up), home)
    finally:
        left = _clean_up(home, up)
    if left:
        raise Failure(f"processes {left} could not be ended", "this should not happen: please look at them")
    click.echo(f"\nThat was all, in {time.monotonic() - began:.1f} s. Everything is stopped and removed.")
    click.echo("Your turn: `roost up` in one terminal, `roost run -- echo hello` in another.")


def _guide(tour: Tour, home: Path) -> None:
    from roost.client import Client  # noqa: PLC0415
    from roost.client.config import read_config  # noqa: PLC0415

    tour.title("A server and three nodes")
    tour.typed(f"roost up --agents {NODES}")
    tour.happened("ready", tour.wait_for(lambda: (home / "client.toml").exists(), START_S_MAX, "the server"))
    with Client(*read_config(home / "client.toml")) as client:
        tour.happened("all nodes connected", tour.wait_for(lambda: _ready(client) == NODES, START_S_MAX, "the nodes"))
        tour.roost("nodes")
        _show_work(tour)
        _show_loss(tour, client, home)
        _show_why(tour)


def _show_work(tour: Tour) -> None:
    tour.title("Run a command: its output is streamed, its exit code is yours")
    tour.roost("run", "--", "echo", "hello")
    tour.roost("run", "--", "sh", "-c", "exit 3", code=3)

    tour.title("A job with steps, like a CI action")
    tour.roost("apply", "-f", tour.file("build.yaml", STEPS))
    tour.roost("wait", "build")
    tour.roost("logs", "build")

    tour.title("An array: twelve instances over all nodes")
    tour.roost("apply", "-f", tour.file("render.yaml", ARRAY))
    tour.roost("wait", "render")
    tour.roost("show", "render")

    tour.title("A service: two replicas that are to run for ever")
    tour.roost("apply", "-f", tour.file("web.yaml", SERVICE))
    tour.roost("wait", "web", "--for", "running")


def _show_loss(tour: Tour, client: "Client", home: Path) -> None:
    tour.title("A machine dies: agent, keeper and work, killed with kill -9")
    node = client.instance("default", "web", 0).node
    tour.roost("nodes", "show", node)
    since = client.page("default", "web").revision
    pids = _kill_node(home / "nodes" / node)
    killed_at = time.monotonic()
    tour.typed(f"kill -9 {' '.join(str(pid) for pid in pids)}      # everything of {node}")
    for instance in client.instances("default", "web"):
        if instance.node == node:
            _wait_until_moved(client, since, instance.index, node)
    tour.happened(
        f"{node} was silent for its lease of {LEASE_MS / 1000:.0f} s, was declared lost, and its work runs elsewhere",
        time.monotonic() - killed_at,
    )
    tour.roost("show", "web.0")
    tour.roost("nodes")


def _show_why(tour: Tour) -> None:
    tour.title("Something that has no place: Roost says why")
    tour.roost("run", "-d", "--name", "huge", "--cpu", "1000", "--", "true", code=4)
    tour.roost("why", "huge")
    tour.roost("why", "web")

    tour.title("Tidy up")
    tour.roost("cancel", "web", "huge")
    tour.roost("wait", "web", "huge", code=1)
    tour.roost("ps", "-a")


def _start(home: Path) -> "subprocess.Popen[bytes]":
    """A session of its own, so that Ctrl-C reaches it only through us."""
    argv = [sys.executable, "-P", "-m", "roost", "up", "--data", str(home), "--listen", "127.0.0.1:0"]
    with open(home / "up.log", "wb") as log:
        return subprocess.Popen(
            [*argv, "--agents", str(NODES), "--lease", str(LEASE_MS)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _ready(client: "Client") -> int:
    return sum(node.status == "ready" for node in client.nodes())


def _kill_node(directory: Path) -> list[int]:
    """The keeper first, so that nothing is restarted, then all that it started."""
    from roost.cli.keepers import pids_of, running_keeper  # noqa: PLC0415

    pids = [running_keeper(directory), *pids_of(directory)]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return pids


def _wait_until_moved(client: "Client", since: int, index: int, node: str) -> None:
    deadline = time.monotonic() + MOVE_S_MAX
    with client.follow_changes(since=since, kinds=("instance",), workload="default/web") as follower:
        while True:
            instance = client.instance("default", "web", index)
            if instance.state == "running" and instance.node != node:
                return
            if follower.next(deadline - time.monotonic()) is None:
                raise Failure(f"web.{index} has not moved within {MOVE_S_MAX:.0f} s")


def _clean_up(home: Path, up: "subprocess.Popen[bytes] | None") -> list[int]:
    """End everything that was started, whatever state it is in, and remove the directory; who is left."""
    from roost.agent.keeper_proc import kill_leftovers  # noqa: PLC0415
    from roost.cli.keepers import pids_of  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if up is not None:
        up.terminate()
        try:
            up.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()
    left: list[int] = []
    for directory in sorted((home / "nodes").glob("*")):
        kill_leftovers(str(directory))
        left += pids_of(directory)
    shutil.rmtree(home, ignore_errors=True)
    return left


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
