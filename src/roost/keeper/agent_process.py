"""The agent as the keeper's child: started, restarted when it ends, and ended when it hangs."""

import os
import signal
from collections.abc import Callable

from roost.keeper.clock import NEVER
from roost.keeper.processes import AGENT_MARK, MARK, PORTS_MARK, log

BACKOFF_MS_MIN = 50
BACKOFF_MS_MAX = 2_000
START_MS_MAX = 300_000  # of an agent that was never heard: on an overloaded machine, starting takes minutes
PROVEN_MS = 10_000  # an agent that lived this long starts again at once
CAUGHT = (signal.SIGPIPE, signal.SIGIO, signal.SIGINT, signal.SIGTERM)  # by the keeper, or ignored by it
LOG_SIZE_MAX = 16 << 20  # the log of the time before is kept once, beside it


class AgentProcess:
    """Every method gets the time; none of them waits."""

    def __init__(
        self, argv: list[str], directory: str, socket_path: str, log: str, silence_ms: int,
        ports: str = "", spawning: Callable[[], None] = lambda: None, spawned: Callable[[int], None] = lambda pid: None,
    ) -> None:  # fmt: skip
        self.argv = argv
        self.env = {**os.environ, MARK: directory, AGENT_MARK: socket_path, PORTS_MARK: ports}
        self.cwd_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self.log = os.path.abspath(log) if log else ""
        self.silence_ms = silence_ms
        self.spawning = spawning  # called before its birth; may raise OSError
        self.spawned = spawned  # called with its pid
        self.pid = 0
        self.started_at = 0
        self.heard_at = 0
        self.killed_at = 0  # for its silence; it is not waited for yet
        self.start_ms = silence_ms  # how long it may start; longer after one that was killed before it was heard
        self.start_at = 0  # when to start it next
        self.backoff_ms = 0
        self.wanted = True

    def next_at(self) -> int:
        if self.pid:
            return self._silent_at()
        return self.start_at if self.wanted else NEVER

    def tick(self, now: int, home_fd: int) -> None:
        """Start what is not there; end what has been silent: a hung agent keeps its node from working."""
        if not self.pid:
            if self.wanted and self.start_at <= now:
                self.start(now, home_fd)
        elif self._silent_at() <= now:
            log(f"the agent (pid {self.pid}) has sent nothing for {now - self.heard_at} ms: killed")
            self.start_ms = self.silence_ms if self._was_heard() else min(self.start_ms * 2, START_MS_MAX)
            self.killed_at = now
            os.kill(self.pid, signal.SIGKILL)

    def _silent_at(self) -> int:
        return max(self.heard_at, self.killed_at) + (self.silence_ms if self._was_heard() else self.start_ms)

    def _was_heard(self) -> bool:
        return self.heard_at > self.started_at

    def start(self, now: int, home_fd: int) -> None:
        """In a session of its own: Ctrl-C in a terminal is for the keeper, which tells the agent when it is time."""
        log_fd = self._open_log()
        actions = [(os.POSIX_SPAWN_DUP2, log_fd, 1), (os.POSIX_SPAWN_DUP2, log_fd, 2)] if log_fd >= 0 else []
        os.fchdir(self.cwd_fd)
        try:
            self.spawning()
            self.pid = os.posix_spawnp(
                self.argv[0], self.argv, self.env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=CAUGHT
            )
            self.started_at = self.heard_at = now
            self.killed_at = 0
            self.spawned(self.pid)
        except OSError as error:
            log(f"the agent cannot be started: {self.argv[0]}: {error.strerror}")
            self._back_off(now)
        finally:
            os.fchdir(home_fd)
            if log_fd >= 0:
                os.close(log_fd)

    def ended(self, status: int, now: int) -> None:
        """It was waited for. The first restart is at once, then ever later, until one of them lives."""
        self.pid = 0
        if now - self.started_at >= PROVEN_MS:
            self.backoff_ms = 0
        if self.wanted:
            code = os.waitstatus_to_exitcode(status)
            log(f"the agent has ended ({f'exit code {code}' if code >= 0 else f'signal {-code}'})")
        self._back_off(now)

    def _back_off(self, now: int) -> None:
        self.start_at = now + self.backoff_ms
        self.backoff_ms = min(max(self.backoff_ms * 2, BACKOFF_MS_MIN), BACKOFF_MS_MAX)

    def signal(self, number: signal.Signals) -> None:
        """Not waited for yet, so the pid is still its own."""
        if self.pid:
            os.kill(self.pid, number)

    def _open_log(self) -> int:
        if not self.log:
            return -1
        try:
            if os.path.exists(self.log) and os.path.getsize(self.log) > LOG_SIZE_MAX:
                os.replace(self.log, self.log + ".1")
            return os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log(f"agent log {self.log}: {error.strerror}; the agent writes to the keeper's own output")
            return -1
