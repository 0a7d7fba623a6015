"""Local nodes: their keepers are started, found again after a crash, watched and ended from here."""

import fcntl
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from roost.cli.common.interrupts import Interrupts
from roost.cli.common.output import echo_err
from roost.client.polling import readable

KEEPER = Path(__file__).resolve().parents[2] / "keeper" / "__main__.py"
LOCK_NAME = "keeper.lock"  # held by a keeper for as long as it lives, with its pid inside
STARTED_NAME = "started.json"  # how the keeper of this directory was started
LOG_NAME = "keeper.log"
AGENT_LOG_NAME = "agent.log"
LAST_WORDS_BYTES = 4_096  # of a log, to tell why a keeper ended
END_S_MAX = 20.0  # keepers give work 5 s and their agent 3 s to end; slower ones are killed


def keeper_argv(directory: Path, agent_argv: list[str], *options: str) -> list[str]:
    """The command line of a keeper: a Python without site-packages, so that it starts at once.

    Without an option `--agent-log`, the agent writes where the keeper does.
    """
    return [sys.executable, "-I", "-S", str(KEEPER), "--dir", str(directory), *options, "--", *agent_argv]


def isolation_line(wanted: str = "") -> str:
    """What a submitter can do on a node of this process's user, in one line. Raises Invalid, as the agent would."""
    from roost.agent.host.fingerprint import user_name
    from roost.agent.isolation import chosen_level

    level, why = chosen_level(wanted or os.environ.get("ROOST_AGENT_ISOLATION", ""))
    user = user_name()
    if level == "sandbox" and user == "root":
        return "Runs are in sandboxes, with a user for each project: they see no other run and no home directory."
    if level == "sandbox":
        return f"Runs are in sandboxes, with the user {user}: they see no other run and no home directory."
    if level == "user":
        return f"Runs have a user for each project and are not in sandboxes ({why}): they see each other."
    return (
        f"Runs have the user {user} and are not isolated ({why}). A submitter can do here what {user} can: "
        "read files and secrets of other projects' runs, and end them."
    )


def agent_argv(*options: str) -> list[str]:
    return [sys.executable, "-P", "-m", "roost.agent", *options]  # -P: a file random.py where we stand is not ours


class KeeperHandle:
    """A keeper of a local node: our child, or one that outlived an earlier `roost up`."""

    def __init__(self, name: str, directory: Path, pid: int, *, adopted: bool) -> None:
        self.name = name
        self.directory = directory
        self.pid = pid
        self.adopted = adopted
        self.pidfd = os.pidfd_open(pid)

    def send(self, number: signal.Signals) -> None:
        """SIGTERM: end its work, its agent and itself; the second one gives no more grace.

        SIGKILL is the last resort: what it ran is killed by the next keeper of this directory.
        """
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> str:
        """It has ended (its pidfd is readable): a message about how."""
        os.close(self.pidfd)
        self.pidfd = -1
        if self.adopted:
            return "ended"
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def last_output(self) -> str:
        path = self.directory / LOG_NAME
        try:
            with open(path, "rb") as file:
                file.seek(max(0, path.stat().st_size - LAST_WORDS_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def start_keeper(
    name: str, directory: Path, agent: list[str], keeper: list[str], interrupts: Interrupts
) -> KeeperHandle:
    """Start a keeper in a session of its own, so that Ctrl-C in a terminal is for `roost up` alone.

    One that is still there and was started in the same way is taken over with all it runs; any other is ended first.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    argv = keeper_argv(directory, agent, "--agent-log", str(directory / AGENT_LOG_NAME), *keeper)
    pid = running_keeper(directory)
    if pid:
        left = KeeperHandle(name, directory, pid, adopted=True)
        with suppress(OSError, ValueError):
            if json.loads((directory / STARTED_NAME).read_text(encoding="utf-8")) == argv:
                return left
        end_keepers([left], interrupts)
    (directory / STARTED_NAME).write_text(json.dumps(argv), encoding="utf-8")
    log = str(directory / LOG_NAME)
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=files, setsid=True)
    return KeeperHandle(name, directory, pid, adopted=False)


def end_strangers(directory: Path, wanted: list[str], interrupts: Interrupts) -> None:
    for lock in sorted(directory.glob(f"*/{LOCK_NAME}")):
        pid = running_keeper(lock.parent)
        if pid and lock.parent.name not in wanted:
            end_keepers([KeeperHandle(lock.parent.name, lock.parent, pid, adopted=True)], interrupts)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Signals that ask a command with local nodes to end. SIGHUP is a closed terminal; nohup ignores it."""
    closed = (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else ()
    return (signal.SIGINT, signal.SIGTERM, *closed)


def end_keepers(keepers: list[KeeperHandle], interrupts: Interrupts) -> None:
    """Stop all of them and wait. A signal meanwhile shortens the grace of the work, and nothing else."""
    left = [keeper for keeper in keepers if keeper.pidfd >= 0]
    if not left:
        return
    interrupts.wake()
    interrupts.clear()
    echo_err(f"stopping {_names(left)} and what runs there; Ctrl-C ends it at once")
    _send(left, signal.SIGTERM)
    deadline = time.monotonic() + END_S_MAX
    while left:
        fds = [interrupts.fd, *(keeper.pidfd for keeper in left)]
        ready = readable(fds, max(0.0, deadline - time.monotonic()))
        if interrupts.fd in ready:
            interrupts.clear()
            _send(left, signal.SIGTERM)
        if not ready:
            echo_err(f"{_names(left)} did not end in {END_S_MAX:.0f} s; killed")
            _send(left, signal.SIGKILL)
            deadline = time.monotonic() + END_S_MAX
        for keeper in [keeper for keeper in left if keeper.pidfd in ready]:
            keeper.reap()
            left.remove(keeper)


def _names(keepers: list[KeeperHandle]) -> str:
    return ", ".join(keeper.name for keeper in keepers)


def _send(keepers: list[KeeperHandle], number: signal.Signals) -> None:
    for keeper in keepers:
        keeper.send(number)


def running_keeper(directory: Path) -> int:
    """The pid of the keeper that holds a directory, or 0."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDWR)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.read(fd, 20) or 0)
    finally:
        os.close(fd)
    return 0


def pids_of(directory: Path) -> list[int]:
    """Everything that the keeper of a directory has started: its agent, and all work on its node."""
    from roost.keeper.processes import started_by

    return started_by(str(directory))
