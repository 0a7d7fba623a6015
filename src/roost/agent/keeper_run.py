"""One run as the keeper knows it: what was ordered, checked by hand, and how one of its steps becomes a process."""

from __future__ import annotations

import errno
import os
import signal

from roost.agent.cgroup import Group
from roost.agent.keeper_proc import MARK, RUN_MARK

PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GRACE_MS_DEFAULT = 10_000
ID_LENGTH_MAX = 256
NOTE_LENGTH_MAX = 16_384  # the agent's own words about a run; 8,192 runs of it are 128 MiB at worst
STEPS_MAX = 1_000
NUMBER_MAX = 1 << 53  # what JSON carries exactly

# A child starts with every signal as the system has it: Python ignores SIGPIPE, and whoever started us may ignore others.
_SIGNALS = [number for number in range(1, signal.NSIG) if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33)]

_WORDS = {
    errno.ENOENT: "no such program (or its interpreter is missing)",
    errno.EACCES: "not executable, or on a filesystem that forbids it",
    errno.ENOEXEC: "not a program this machine can run (a script needs a #! line)",
    errno.E2BIG: "arguments and environment are too large",
}


class Refused(Exception):
    """An order that cannot be followed, in words for whoever gave it."""


class Run:
    """States: running → (stopping) → ended. While `pid` is set, the process group of that number is ours to signal."""

    __slots__ = (
        "cause",
        "codes",
        "cpu_s",
        "deadline",
        "dir",
        "ended",
        "env",
        "grace_ms",
        "group",
        "id",
        "leased",
        "limits",
        "limits_said",
        "log",
        "made_dir",
        "note",
        "oom",
        "pid",
        "rss_max",
        "started_at",
        "state",
        "status",
        "step",
        "steps",
        "timeout_ms",
        "why",
    )

    def __init__(self, order: dict[str, object], mark: str) -> None:
        self.id = text(order, "id")
        self.steps = steps(order.get("steps"))
        self.dir = absolute(order, "dir")
        self.log = absolute(order, "log")
        self.env = environment(order.get("env"), self.id, self.dir, mark)
        self.timeout_ms = number(order, "timeout_ms", 0)
        self.grace_ms = number(order, "grace_ms", GRACE_MS_DEFAULT)
        self.limits = limits(order.get("limits"))
        self.leased = order.get("leased", False) is True
        self.note = text(order, "note", "", NOTE_LENGTH_MAX)
        self.state = "running"
        self.cause = ""  # why it has to end: "timed_out", "stopped" or "lease"; nothing while it may end by itself
        self.why = ""
        self.pid = 0
        self.step = 0
        self.status = 0  # of the last process that was waited for
        self.started_at = 0
        self.deadline = 0  # when the next thing is due: the timeout, or KILL after the grace
        self.codes: list[int] = []  # of every step that is over; negative: the signal
        self.cpu_s = 0.0
        self.rss_max = 0
        self.oom = False
        self.made_dir = False
        self.group: Group | None = None
        self.limits_said = ""
        self.ended: dict[str, object] | None = None

    def record(self) -> dict[str, object]:
        """Everything a new agent has to know about it."""
        return {
            "id": self.id,
            "state": self.state,
            "note": self.note,
            "leased": self.leased,
            "pid": self.pid,
            "step": self.step,
            "started_at": self.started_at,
            "limits": self.limits_said,
            "ended": self.ended,
        }

    def slim(self) -> None:
        """Let go of what an ended run does not need: it may be kept for long."""
        self.env = {}
        self.steps = []
        self.group = None


def spawn(run: Run, log_fd: int, home_fd: int) -> int:
    """Start the run's current step and return its pid. Raises Refused, in words that name the program.

    posix_spawn, never fork: it costs the same however large we are. The work directory is set around it, which is safe
    because the keeper has one thread. Descriptor 0 of the keeper is /dev/null, all others close on exec.
    """
    argv = run.steps[run.step][0]
    group = run.group
    try:
        os.chdir(run.dir)
    except OSError as error:
        raise Refused(f"work directory {run.dir}: {error.strerror}") from error
    try:
        path = program(argv[0], run.env["PATH"])
        if group is not None:
            enter(group)
        return os.posix_spawn(
            path,
            argv,
            run.env,
            file_actions=((os.POSIX_SPAWN_DUP2, log_fd, 1), (os.POSIX_SPAWN_DUP2, log_fd, 2)),
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )
    except OSError as error:
        raise Refused(f"{argv[0]}: {_WORDS.get(error.errno or 0, error.strerror)}") from error
    except ValueError as error:  # a NUL inside, or half a surrogate pair
        raise Refused(f"{argv[0]}: {error}") from error
    finally:
        os.fchdir(home_fd)
        if group is not None:
            group.leave()


def enter(group: Group) -> None:
    """Into the run's cgroup; a group that does not take us is the run's error, not a missing program."""
    try:
        group.enter()
    except OSError as error:
        raise Refused(f"cgroup {group.dirs[0]}: {error.strerror}") from error


def program(name: str, search: str) -> str:
    """What a shell would find: a name without a slash is looked for in the run's own PATH."""
    if "/" in name:
        return name
    for directory in search.split(":"):
        path = f"{directory or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise Refused(f"{name}: not found in PATH ({search})")


def environment(given: object, run_id: str, home: str, mark: str) -> dict[str, str]:
    """Exactly what was given and four names more; nothing of the keeper's own, which may hold tokens."""
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise Refused("env has to be an object of strings")
    env = {"PATH": PATH_DEFAULT, "HOME": home}
    for name, value in given.items():
        if not isinstance(value, str) or not name or "=" in name:
            raise Refused(f"env.{name}: a name without '=' and a string are needed")
        env[name] = value
    env[MARK] = mark
    env[RUN_MARK] = run_id
    return env


def steps(given: object) -> list[tuple[list[str], bool]]:
    """Each step as (argv, ignore_failure)."""
    if not isinstance(given, list) or not 0 < len(given) <= STEPS_MAX:
        raise Refused(f"steps has to be a list of 1 to {STEPS_MAX}")
    found: list[tuple[list[str], bool]] = []
    for index, step in enumerate(given):
        argv = step.get("argv") if isinstance(step, dict) else None
        if not isinstance(argv, list) or not argv or not argv[0] or not all(isinstance(word, str) for word in argv):
            raise Refused(f"steps[{index}].argv has to be a list of strings that begins with a program")
        found.append((argv, step.get("ignore_failure", False) is True))
    return found


def limits(given: object) -> tuple[int, int]:
    """(milli-cores, bytes of memory); 0 is no limit."""
    if given is None:
        return (0, 0)
    if not isinstance(given, dict):
        raise Refused("limits has to be an object with cpu_m and memory, or null")
    return (number(given, "cpu_m", 0), number(given, "memory", 0))


def text(order: dict[str, object], key: str, default: str | None = None, length_max: int = ID_LENGTH_MAX) -> str:
    """A string of the order; without a default it must be there and say something."""
    value = order.get(key, default)
    if not isinstance(value, str) or (default is None and not value) or len(value) > length_max or "\0" in value:
        raise Refused(f"{key} has to be a string of at most {length_max} characters")
    return value


def absolute(order: dict[str, object], key: str) -> str:
    """An absolute path of the order."""
    value = text(order, key, length_max=4096)
    if value[0] != "/":
        raise Refused(f"{key} has to be an absolute path")
    return value.rstrip("/") or "/"


def number(order: dict[str, object], key: str, default: int) -> int:
    """A whole number of the order, zero or more."""
    value = order.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise Refused(f"{key} has to be a whole number from 0 to {NUMBER_MAX}")
    return value
