"""The keeper's one loop: orders come in, processes end, time passes; what happened goes to the agent.

The keeper is the parent of the agent and of every workload process on a node. It is small so that it has few reasons
to die, and it waits in one place, so that nothing can make it late.
"""

import fcntl
import json
import os
import select
import signal
import sys
from collections.abc import Callable

from roost.keeper import cgroup, ports, processes
from roost.keeper.agent_process import AgentProcess
from roost.keeper.clock import NEVER, now_ms
from roost.keeper.processes import log
from roost.keeper.run import INVALID, RunRefused, number
from roost.keeper.run_table import RunTable
from roost.keeper.socket import SOCKET_NAME, KeeperSocket, encode

AGENT_SILENCE_MS = 10_000
AGENT_END_MS_MAX = 3_000
GRACE_MS = 5_000
ERROR_LENGTH_MAX = 1_000  # an error may quote what was wrong, but not all of it

USAGE = (
    "usage: keeper --dir DIR [--agent-log FILE] [--agent-silence-ms N] [--grace-ms N] [--recycle on|off]"
    " [--nodes N] [--pids N] [--hide PATHS] [--readable PATHS] -- AGENT_ARGV..."
)

_scan: Callable[[str, int], tuple[object, int]] = json.JSONDecoder().raw_decode


class KeeperOptions:
    dir = ""  # for the socket and the lock; one keeper each
    agent: list[str] = []
    agent_log = ""  # where the agent's output goes; nothing: the keeper's own
    agent_silence_ms = AGENT_SILENCE_MS
    grace_ms = GRACE_MS  # between TERM and KILL when the keeper ends
    nodes = 1  # of one server on this machine: they share its ports
    pids = cgroup.PIDS_MAX  # processes and threads of one run
    hide = ""  # directories that no run in a slot sees, beside those of every machine; as in PATH
    readable = ""  # what such a run sees in hidden directories, to read
    recycle = "on"  # empty directories and logs are used again (recycling.py); or "off"


class Keeper:
    """Owns the loop; the table of runs, the agent and the link each own their part."""

    def __init__(self, options: KeeperOptions, directory: str) -> None:
        self.grace_ms = options.grace_ms
        self.ports = ports.claim(options.nodes)
        if self.ports is None:
            log("other nodes of this machine have all blocks of ports: services may get a port that is in use")
        self.agent = AgentProcess(
            options.agent, directory, f"{directory}/{SOCKET_NAME}", options.agent_log, options.agent_silence_ms,
            str(self.ports or ""), lambda: self.runs.containment.go_home(),
            lambda pid: self.runs.containment.release(pid),
        )  # fmt: skip
        os.chdir(directory)
        self.epoll = select.epoll()
        self.link = KeeperSocket(self.epoll)
        self.wake_fd = self._catch_signals()
        reaper = processes.adopt_orphans()
        cgroups = cgroup.prepare(cgroup.detect())
        cgroups.pids_max = options.pids
        self.runs = RunTable(
            directory, cgroups, self.link, reaper=reaper, recycle=options.recycle == "on",
            hidden=paths(options.hide), readable=paths(options.readable),
        )  # fmt: skip
        self.signalled = 0  # how often we were asked to end
        self.agent_kill_at = NEVER  # set: the agent was asked to end

    def _catch_signals(self) -> int:
        """A signal makes a pipe readable, so that the loop waits in one place only."""
        wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._asked_to_end)
        signal.signal(signal.SIGINT, self._asked_to_end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal is no reason to drop work
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's notice about a file lease (see recycling.py)
        self.epoll.register(wake_fd, select.EPOLLIN)
        return wake_fd

    def _asked_to_end(self, *_: object) -> None:
        self.signalled += 1

    def run(self) -> None:
        now = now_ms()
        self.agent.tick(now, self.runs.home_fd)
        while self.agent_kill_at == NEVER or self.agent.pid:
            self.link.flush(now)
            at = min(self.runs.next_at(), self.agent.next_at(), self.link.flush_at, self.agent_kill_at)
            # One more than the difference: the clock is cut to whole milliseconds, and too early is waking twice.
            ready = self.epoll.poll(None if at == NEVER else max(0, at - now_ms() + 1) / 1000)
            now = now_ms()
            self._turn(dict(ready), now)
        self.link.flush(NEVER)

    def _turn(self, ready: dict[int, int], now: int) -> None:
        """Orders first, so that a lease renewed in time is never taken for ended; then the dead; then the clock."""
        link = self.link
        if link.fd in ready:
            for line in link.read():
                self._order(line, now)
                self.agent.heard_at = now
        if link.listener.fileno() in ready:
            link.accept(self.runs.rules.greeting(now))
            self.agent.heard_at = now
        self.runs.slots.read(ready, now)
        if self.wake_fd in ready:
            os.read(self.wake_fd, 4096)
            for pid, status in self.runs.reap(now):
                if pid == self.agent.pid:
                    self.agent.ended(status, now)
        self.runs.tick(now)
        self.agent.tick(now, self.runs.home_fd)
        if self.signalled:
            self._end(now)

    def _order(self, line: bytes, now: int) -> None:
        """Follow one order. Whatever is wrong with it is sent to the agent and hurts no other run."""
        order: object = None
        try:
            message = line.decode()
            order, end = _scan(message, 0)
            if end != len(message) or not isinstance(order, dict):
                raise RunRefused("an order is one JSON object")
            self._follow(order, now)
        except (RunRefused, ValueError, RecursionError) as error:
            existing = order if isinstance(order, dict) else {}
            named = {name: existing[name] for name in ("do", "id") if isinstance(existing.get(name), str)}
            reason, text = INVALID, f"not JSON: {type(error).__name__}"
            if isinstance(error, RunRefused):
                reason, text = error.reason, str(error)[:ERROR_LENGTH_MAX]
            self.link.emit(encode({"event": "refused", "reason": reason, "error": text, "at": now} | named))

    def _follow(self, order: dict[str, object], now: int) -> None:
        do = order.get("do")
        if do == "start":
            self.runs.rules.start(order, now)
        elif do == "forget":
            self.runs.rules.forget(order, now)
        elif do == "stop":
            self.runs.rules.stop(order, now)
        elif do == "lease":
            self.runs.rules.lease(number(order, "until", 0), now)
        elif do == "power":
            self.runs.rules.power(order, now)
        elif do != "ping":
            raise RunRefused("an order has a `do`: start, stop, power, lease, forget or ping")

    def _end(self, now: int) -> None:
        """First the runs, while the agent can still tell about them; then the agent. Asked twice: no more grace."""
        if not self.runs.rules.closing or self.signalled > 1:
            grace_ms = 0 if self.signalled > 1 else self.grace_ms
            self.signalled = 1
            self.agent.wanted = False
            self.runs.rules.stop_all(grace_ms, "shutdown", now)
        if self.runs.rules.live:
            return
        if self.agent_kill_at == NEVER:
            self.link.flush(now)
            self.agent.signal(signal.SIGTERM)
            self.agent.signal(signal.SIGCONT)
            self.agent_kill_at = now + AGENT_END_MS_MAX
        elif self.agent_kill_at <= now:
            self.agent.signal(signal.SIGKILL)
            self.agent_kill_at = now + AGENT_END_MS_MAX

    def close(self) -> None:
        os.fchdir(self.runs.home_fd)
        self.link.close()
        self.runs.close()

    def kill_all(self) -> None:
        self.runs.kill_all()
        self.agent.signal(signal.SIGKILL)


def main(arguments: list[str]) -> int:
    if sys.getfilesystemencoding() != "utf-8":  # names and arguments are passed on byte by byte
        os.execv(sys.executable, [sys.executable, "-X", "utf8", "-I", "-S", *sys.argv])
    options = parse(arguments)
    os.makedirs(options.dir, mode=0o700, exist_ok=True)
    directory = os.path.realpath(options.dir)
    _own_descriptors()
    lock_fd = lock(directory)
    if lock_fd < 0:
        return 2
    killed = processes.kill_leftovers(directory)
    if killed:
        log(f"{killed} processes of an earlier keeper were killed")
    keeper = Keeper(options, directory)
    try:
        keeper.run()
    except BaseException:
        keeper.kill_all()
        raise
    keeper.close()
    return 0


def parse(arguments: list[str]) -> KeeperOptions:
    """The command line, by hand: argparse would be a fifth of our size and of the time to start."""
    options = KeeperOptions()
    rest = list(arguments)
    while rest and rest[0].startswith("--") and rest[0] != "--":
        name, equals, value = rest.pop(0).partition("=")
        if not equals:
            value = rest.pop(0) if rest else ""
        field = name[2:].replace("-", "_")
        if field not in vars(KeeperOptions) or field == "agent" or not value:
            sys.exit(f"keeper: {name}: unknown, or without a value\n{USAGE}")
        try:
            setattr(options, field, int(value) if isinstance(getattr(options, field), int) else value)
        except ValueError:
            sys.exit(f"keeper: {name} is a number, not {value!r}\n{USAGE}")
    if options.recycle not in ("on", "off"):
        sys.exit(f"keeper: --recycle is on or off, not {options.recycle!r}\n{USAGE}")
    options.agent = rest[1:] if rest[:1] == ["--"] else rest
    if not options.dir or not options.agent:
        sys.exit(USAGE)
    return options


def paths(given: str) -> list[str]:
    return [os.path.realpath(path) for path in given.split(":") if path]


def lock(directory: str) -> int:
    """One keeper per directory, for as long as it lives. The descriptor stays open; -1: another one has it."""
    fd = os.open(f"{directory}/keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log(f"another keeper (pid {os.read(fd, 20).decode().strip() or 'unknown'}) holds {directory}")
        os.close(fd)
        return -1
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _own_descriptors() -> None:
    """0 is /dev/null for us and all our children; 1 and 2 exist; nothing else that we were given is passed on."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for fd in (1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(null, fd)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
