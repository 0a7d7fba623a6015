"""One run as the keeper knows it: what was ordered, checked by hand, and how one of its steps becomes a process."""

import binascii
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from roost.keeper.cgroup import Group
from roost.keeper.containers.order import ContainerOrder
from roost.keeper.containment import Pen
from roost.keeper.isolation import LEVELS as ISOLATION_LEVELS
from roost.keeper.isolation import OrderedIsolation
from roost.keeper.machines.order import MachineOrder
from roost.keeper.processes import MARK, RUN_MARK
from roost.keeper.slots.handle import SlotHandle
from roost.keeper.socket import encode, quote
from roost.keeper.spawn import SpawnRefused, start
from roost.keeper.usage import KeeperUsage

PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GRACE_MS_DEFAULT = 10_000
ID_LENGTH_MAX = 256
NOTE_LENGTH_MAX = 5 << 18  # the order as the agent got it: a document of 512 KiB, variables of 256 KiB, in base64
STEPS_MAX = 1_000
NUMBER_MAX = 1 << 53  # what JSON carries exactly
DETAIL_LENGTH_MAX = 1_000
INVALID, CLOSING, FULL, NO_SUCH_RUN, NOT_ENDED = "invalid", "closing", "full", "no_such_run", "not_ended"
POWER_ACTIONS = ("start", "stop", "pause", "resume", "reboot", "reset")
_NOTHING: dict[str, str] = {}


class RunRefused(Exception):
    """An order that cannot be followed: a reason for programs, one of ports/driver.Refusal, and one for people."""

    def __init__(self, error: str, reason: str = INVALID) -> None:
        super().__init__(error)
        self.reason = reason


class KeeperRun:
    """States: (waiting) → running → (stopping) → ended. While `pid` is set, that process group is ours to signal."""

    state = "running"
    cause = ""  # why it has to end: "timed_out", "stopped" or "lease"; nothing while it may end by itself
    why = ""  # as `stop` gave it: kept as it is, and given back
    detail = ""
    pid = 0
    step = 0
    code = 0  # with which the last process that was waited for ended; negative: the signal
    is_timed = False  # its timeout counts
    is_exited = False  # that process is gone, others of its group may be left
    log_offset = 0  # of the current step, if there are several
    deadline = 0  # when the next thing is due: the timeout, or KILL after the grace
    codes: tuple[int, ...] = ()  # of every step that is over; negative: the signal
    oom = False
    made_dir = False  # the keeper made its work directory
    log_fd = -1
    stderr_fd = -1
    stderr_size = 0
    group: Group | None = None
    pen: Pen | None = None  # the group around its processes
    slot: SlotHandle | None = None  # where it is, if it has one
    limits_said = ""
    after = ""  # the run whose end it waits for
    ended = ""  # the event of its end
    power = ""  # of its machine, as its supervisor says
    machine_error = ""  # why it could not go on
    power_asked: tuple[int, str, int] | None = None  # the last command for it: serial, action, grace in ms

    def __init__(self, run_id: str, order: dict[str, object], mark: str, now: int) -> None:
        self.id = run_id
        self.quoted = quote(run_id)
        self.started_at = now
        self.steps = steps(order.get("steps"))
        self.dir = absolute(order, "dir")
        self.log = absolute(order, "log")
        self.stderr = absolute(order, "stderr") if order.get("stderr") else ""  # its file; nothing: that of the log
        self.env = environment(order.get("env"), secrets(order.get("secrets")), run_id, self.dir, mark)
        self.timeout_ms = number(order, "timeout_ms", 0)
        self.grace_ms = number(order, "grace_ms", GRACE_MS_DEFAULT)
        self.leased = order.get("leased") is True
        self.limits = limits(order.get("limits"))
        self.limits_required = is_required(order.get("limits"))
        self.isolation = isolation_of(order.get("isolation"))
        self.container = container(order.get("container"), has_steps=len(self.steps) > 1)
        self.machine = machine(order.get("machine"))
        self.power_serial = 0  # the last command that its machine has carried out
        if self.machine is not None:
            self.power_serial = self.machine.power_serial
            self.limits = self.machine.limits(self.limits)
        self.note = text(order, "note", "", NOTE_LENGTH_MAX)
        self.usage = KeeperUsage()

    @property
    def logs(self) -> tuple[str, ...]:
        return (self.log, self.stderr) if self.stderr else (self.log,)

    def record(self) -> str:
        names = ("id", "state", "note", "leased", "pid", "step", "started_at", "after")
        more: dict[str, object] = {"limits": self.limits_said}
        if self.power:
            more |= {"power": self.power, "power_serial": self.power_serial}
        head = encode({name: getattr(self, name) for name in names} | more)
        return f'{head[:-1]},"ended":{self.ended or "null"}}}'

    def slim(self) -> None:
        """Let go of what an ended run does not need: it may be kept for long."""
        self.env = _NOTHING
        self.steps = []
        self.group = None
        self.slot = None


def spawn(run: KeeperRun, ignored: list[int]) -> int:
    """Start the run's current step and return its pid. Raises RunRefused, which names the program.

    The work directory is set before, which is safe because the keeper has one thread; where the keeper itself is does
    not matter to it.
    """
    argv = run.steps[run.step][0]
    try:
        with in_place(run):
            if run.isolation is not None:
                argv = run.isolation.as_user(argv, run.env)
            return start(argv, run.env, run.log_fd, run.stderr_fd if run.stderr else run.log_fd, ignored)
    except SpawnRefused as error:
        raise RunRefused(str(error)) from error


@contextmanager
def in_place(run: KeeperRun) -> Iterator[None]:
    """In the work directory and the group of a run, for the moment of a birth. Raises RunRefused."""
    group = run.group
    try:
        os.chdir(run.dir)
    except OSError as error:
        raise RunRefused(f"work directory {run.dir}: {error.strerror}") from error
    try:
        if group is not None:
            try:
                group.enter()
            except OSError as error:
                raise RunRefused(f"cgroup {group.dirs[0]}: {error.strerror}") from error
        yield
    finally:
        if group is not None:
            group.leave()


def ending(run: KeeperRun, cause: str, now: int, error: str, log_size: int) -> str:
    code = run.codes[-1] if run.codes and cause != "error" else None
    more = ""
    if len(run.steps) > 1 or (code and run.steps[run.step][1]):
        more = f',"codes":{list(run.codes)}'
        if cause == "exited" and run.steps[run.step][1]:
            code = 0  # a failure that was to be ignored
    if run.stderr:
        more += f',"stderr_size":{run.stderr_size}'
    if run.why:
        more += f',"why":{encode(run.why)},"detail":{encode(run.detail)}'
    if error:
        more += f',"error":{encode(error)}'
    number_ = "null" if code is None or code < 0 else code
    signal_ = "null" if code is None or code >= 0 else -code
    return (
        f'{{"event":"ended","id":{run.quoted},"cause":"{cause}","code":{number_},"signal":{signal_},"step":{run.step},'
        f'"oom":{"true" if run.oom else "false"},"at":{now},"log_size":{log_size},'
        f'"usage":{run.usage.encoded()}{more}}}'
    )


def is_last(run: KeeperRun) -> bool:
    return run.step + 1 == len(run.steps) or (run.code != 0 and not run.steps[run.step][1])


def is_gone(run: KeeperRun) -> bool:
    try:
        os.killpg(run.pid, 0)
    except ProcessLookupError:
        return run.group is None or run.group.kill()
    except PermissionError:
        return False
    return False


def kill(run: KeeperRun) -> None:
    signal_group(run.pid, signal.SIGKILL)
    if run.group is not None:
        run.group.kill()


def signal_group(group: int, what: signal.Signals) -> None:
    """A process group that may be gone. Never 0: that would be our own."""
    if group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, what)


def environment(given: object, hidden: dict[str, str], run_id: str, home: str, mark: str) -> dict[str, str]:
    """Exactly what was given and four names more; nothing of the keeper's own, which may hold tokens."""
    own = {MARK: mark, RUN_MARK: run_id}
    return {"PATH": PATH_DEFAULT, "HOME": home, **hidden, **variables(given, "env"), **own}


def secrets(given: object) -> dict[str, str]:
    """More of the environment, in base64: any bytes. They are kept in memory only, and no message has a value."""
    found: dict[str, str] = {}
    for name, value in variables(given, "secrets").items():
        try:
            found[name] = os.fsdecode(binascii.a2b_base64(value, strict_mode=True))
        except ValueError:
            raise RunRefused(f"secrets.{name}: this is not base64") from None
    return found


def variables(given: object, key: str) -> dict[str, str]:
    if not given:
        return _NOTHING
    if not isinstance(given, dict):
        raise RunRefused(f"{key} has to be an object of strings")
    for name, value in given.items():
        if not isinstance(value, str) or not name or "=" in name:
            raise RunRefused(f"{key}.{name}: a name without '=' and a string are needed")
    return given


def steps(given: object) -> list[tuple[list[str], bool]]:
    """Each step as (argv, ignore_failure)."""
    if not isinstance(given, list) or not 0 < len(given) <= STEPS_MAX:
        raise RunRefused(f"steps has to be a list of 1 to {STEPS_MAX}")
    found: list[tuple[list[str], bool]] = []
    for index, step in enumerate(given):
        argv = step.get("argv") if isinstance(step, dict) else None
        if not isinstance(argv, list) or not argv or not argv[0] or not {str}.issuperset(map(type, argv)):
            raise RunRefused(f"steps[{index}].argv has to be a list of strings that begins with a program")
        found.append((argv, step.get("ignore_failure", False) is True))
    return found


def limits(given: object) -> tuple[int, int] | None:
    """(milli-cores, bytes of memory); 0 is no limit."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise RunRefused("limits has to be an object with cpu_m and memory, or null")
    found = (number(given, "cpu_m", 0), number(given, "memory", 0))
    return found if any(found) else None


def is_required(given: object) -> bool:
    return isinstance(given, dict) and given.get("required") is True


def lacks_limits(run: KeeperRun) -> str:
    """Why a run may not begin: limits that must hold and cannot."""
    return f"limits are required: {run.limits_said}" if run.limits_required and run.limits_said else ""


def isolation_of(given: object) -> OrderedIsolation | None:
    """None: the run has our own user, and sees what we see."""
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("level") not in ISOLATION_LEVELS:
        raise RunRefused(f"isolation has to be an object with the level {' or '.join(ISOLATION_LEVELS)}, or null")
    user, group = number(given, "user", os.geteuid()), number(given, "group", os.getegid())
    return OrderedIsolation(given["level"], user, group, text(given, "project", ""))


def container(given: object, *, has_steps: bool) -> ContainerOrder | None:
    try:
        return None if given is None else ContainerOrder(given, has_steps=has_steps)
    except ValueError as error:
        raise RunRefused(str(error)) from None


def machine(given: object) -> MachineOrder | None:
    try:
        return None if given is None else MachineOrder(given)
    except ValueError as error:
        raise RunRefused(str(error)) from None


def text(order: dict[str, object], key: str, default: str | None = None, length_max: int = ID_LENGTH_MAX) -> str:
    """A string of the order; without a default it must be there and say something."""
    value = order.get(key, default)
    if not isinstance(value, str) or (default is None and not value) or len(value) > length_max or "\0" in value:
        raise RunRefused(f"{key} has to be a string of at most {length_max} characters")
    return value


def absolute(order: dict[str, object], key: str) -> str:
    value = text(order, key, length_max=4096)
    if value[0] != "/" or not (value.isascii() or encodable(value)):
        raise RunRefused(f"{key} has to be an absolute path")
    return value.rstrip("/") or "/"


def encodable(value: str) -> bool:
    """JSON can carry half a character, a path cannot."""
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def number(order: dict[str, object], key: str, default: int) -> int:
    value = order.get(key, default)
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:  # a bool is not a number here
        raise RunRefused(f"{key} has to be a whole number from 0 to {NUMBER_MAX}")
    return value
