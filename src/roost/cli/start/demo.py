"""roost demo: a guided tour on a small Roost of its own, with a machine that really dies. Leaves nothing behind."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.start.local_nodes import pids_of, running_keeper
from roost.client import Client
from roost.client.config import read_config
from roost.keeper.processes import kill_leftovers

NODES = 3
LEASE_MS = 2_000  # half of the usual: a tour should not be all waiting
START_S_MAX = 30.0
MOVE_S_MAX = 30.0
STOP_S_MAX = 30.0  # keepers give work and agents some seconds each

COMMAND_S_MAX = 60.0
POLL_S = 0.01
LAST_LINE_MAX = 500  # characters of a log line in an error

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


@click.command()
def demo() -> None:
    """Watch Roost place work, lose a machine and recover, in under a minute.

    Starts a server and three local nodes in a temporary directory. Runs work on them, kills one node with its work,
    and cleans up. Other installations on this machine are not affected.

    Examples:
      roost demo
      make demo

    Next: `roost up`, and try the same by hand.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    home = Path(tempfile.mkdtemp(prefix="roost-demo-"))
    began = time.monotonic()
    up: subprocess.Popen[bytes] | None = None
    try:
        up = _start(home)
        _guide(Tour(home, up), home)
    finally:
        left = _clean_up(home, up)
    if left:
        raise Failure(f"processes {left} could not be ended", "this is a bug: please report it")
    click.echo(f"\nThat was all, in {time.monotonic() - began:.1f} s. Everything is stopped and removed.")
    click.echo("Your turn: `roost up` in one terminal, `roost run -- echo hello` in another.")


class Tour:
    """Commands run as a user would run them: each in a process of its own, against the demo's server."""

    is_interrupted = False  # Python drops an exception that a signal raises in a callback of the garbage collector

    def __init__(self, home: Path, up: subprocess.Popen[bytes]) -> None:
        self._home = home
        self._up = up
        self._env = {**os.environ, "ROOST_CONFIG": str(home / "client.toml")}
        self._number = 0

    def title(self, message: str) -> None:
        self._number += 1
        click.echo()
        click.echo(click.style(f"{self._number}. {message}", bold=True))

    def typed(self, line: str) -> None:
        click.echo(click.style(f"   $ {line}", fg="cyan"))

    def happened(self, message: str, seconds: float) -> None:
        click.echo(f"     {message} ({seconds:.2f} s)")

    def file(self, name: str, text: str) -> str:
        (self._home / name).write_text(text, encoding="utf-8")
        self.typed(f"cat {name}")
        self._show(text)
        return name

    def roost(self, *message: str, code: int = 0) -> None:
        """Run a command and show it. Raises Failure when it does not end as it should."""
        self.typed(shlex.join(("roost", *message)))
        self._check_interrupted()
        argv = [sys.executable, "-P", "-m", "roost", *message]
        began = time.monotonic()
        try:
            done = subprocess.run(
                argv, env=self._env, cwd=self._home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=COMMAND_S_MAX,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            self._show((late.output or b"").decode(errors="replace"))
            raise Failure(f"this took longer than {COMMAND_S_MAX:.0f} s; {self._last_output()}") from None
        took = f"{time.monotonic() - began:.2f} s"
        self._show(done.stdout.decode(errors="replace"))
        end = f", exit code {done.returncode}" if done.returncode else ""
        click.echo(click.style(f"     ({took}{end})", dim=True))
        if done.returncode != code:
            raise Failure(f"this should have ended with exit code {code}, not {done.returncode}; {self._last_output()}")

    def _check_interrupted(self) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt

    def wait_for(self, happened: Callable[[], bool], seconds_max: float, what: str) -> float:
        """Wait for something outside of any server; how long it took."""
        began = time.monotonic()
        while not happened():
            self._check_interrupted()
            if self._up.poll() is not None:
                raise Failure(f"the server has ended: {self._last_output()}")
            if time.monotonic() - began > seconds_max:
                raise Failure(f"waited {seconds_max:.0f} s for {what}; {self._last_output()}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def _show(self, text: str) -> None:
        for line in text.splitlines():
            click.echo(f"     {line}")

    def _last_output(self) -> str:
        lines = (self._home / "up.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:LAST_LINE_MAX] if lines else "no output"


def _guide(tour: Tour, home: Path) -> None:
    tour.title("A server and three nodes")
    tour.typed(f"roost up --agents {NODES}")
    tour.happened("ready", tour.wait_for(lambda: (home / "client.toml").exists(), START_S_MAX, "the server"))
    with Client(*read_config(home / "client.toml")) as client:

        def is_connected() -> bool:
            return sum(node.status == "ready" for node in client.nodes.list()) == NODES

        tour.happened("all nodes connected", tour.wait_for(is_connected, START_S_MAX, "the nodes"))
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

    tour.title("A service: two replicas that run until they are cancelled")
    tour.roost("apply", "-f", tour.file("web.yaml", SERVICE))
    tour.roost("wait", "web", "--for", "running")


def _show_loss(tour: Tour, client: Client, home: Path) -> None:
    tour.title("A machine dies: agent, keeper and work, killed with kill -9")
    node = client.instances.get("default", "web", 0).node
    tour.roost("nodes", "show", node)
    since = client.workloads.page("default", "web").revision
    pids = _kill_node(home / "nodes" / node)
    killed_at = time.monotonic()
    tour.typed(f"kill -9 {' '.join(str(pid) for pid in pids)}      # everything of {node}")
    for instance in client.instances.list("default", "web"):
        if instance.node == node:
            _wait_until_moved(client, since, instance.index, node)
    tour.happened(
        f"{node} was silent for its lease of {LEASE_MS / 1000:.0f} s, was declared lost, and its work runs elsewhere",
        time.monotonic() - killed_at,
    )
    tour.roost("show", "web.0")
    tour.roost("nodes")


def _show_why(tour: Tour) -> None:
    tour.title("Work that fits nowhere: Roost explains")
    tour.roost("run", "-d", "--name", "huge", "--cpu", "1000", "--", "true", code=4)
    tour.roost("why", "huge")
    tour.roost("why", "web")

    tour.title("Tidy up")
    tour.roost("cancel", "web", "huge")
    tour.roost("wait", "web", "huge", code=1)
    tour.roost("ps", "-a")


def _start(home: Path) -> subprocess.Popen[bytes]:
    """A session of its own, so that Ctrl-C reaches it only through us."""
    argv = [sys.executable, "-P", "-m", "roost", "up", "--data", str(home), "--listen", "127.0.0.1:0"]
    with open(home / "up.log", "wb") as log:
        return subprocess.Popen(
            [*argv, "--agents", str(NODES), "--lease", str(LEASE_MS), "--no-restart-nodes"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _kill_node(directory: Path) -> list[int]:
    """The keeper first, so that nothing is restarted, then all that it started."""
    pids = [running_keeper(directory), *pids_of(directory)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def _wait_until_moved(client: Client, since: int, index: int, node: str) -> None:
    deadline = time.monotonic() + MOVE_S_MAX
    with client.changes.open(since=since, kinds=("instance",), workload="default/web") as follower:
        while True:
            instance = client.instances.get("default", "web", index)
            if instance.state == "running" and instance.node != node:
                return
            if follower.next(deadline - time.monotonic()) is None:
                raise Failure(f"web.{index} has not moved within {MOVE_S_MAX:.0f} s")


def _clean_up(home: Path, up: subprocess.Popen[bytes] | None) -> list[int]:
    """End everything that was started and remove the directory; the processes that are left."""
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
    """Once: two signals at once would be raised in the clean-up as well."""
    if not Tour.is_interrupted:
        Tour.is_interrupted = True
        raise KeyboardInterrupt
