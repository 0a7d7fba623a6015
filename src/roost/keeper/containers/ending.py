"""Containers of runs, as the keeper has them: their shims are started, and they are ended past any shim.

A run is over when its engine says that its container is gone. An engine that does not answer is asked again, and
meanwhile the first process of the container is killed past it.
"""

import os
import select
import socket
import sys
from contextlib import suppress

from roost.keeper.clock import NEVER
from roost.keeper.containers.engine import READ_BYTES, request_bytes
from roost.keeper.containers.order import ContainerOrder, kill_first_process
from roost.keeper.processes import MARK, RUN_MARK, log
from roost.keeper.run import PATH_DEFAULT, KeeperRun, RunRefused, is_last
from roost.keeper.usage import KeeperUsage

SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")
ANSWER_MS_MAX = 15_000  # a busy engine takes seconds to remove a container; longer means that it hangs
AGAIN_MS = 250  # between two calls that did not end a container
GONE = (204, 404)
HEAD = len("HTTP/1.1 204")
WORK_MODE = 0o777  # the user of an image may be any; the directory above is the keeper's alone


class Ending:
    """One container that is to be gone. It has a call under way (`sock`), or one is due."""

    def __init__(self, run_id: str, container: ContainerOrder) -> None:
        self.run_id = run_id
        self.container = container
        self.sock: socket.socket | None = None
        self.due = 0  # when to call, or when to give up waiting for the answer
        self.head = b""
        self.is_over = False
        self.is_forgotten = False
        self.is_logged = False

    def fileno(self) -> int:
        return -1 if self.sock is None else self.sock.fileno()


class Containers:
    """Every method gets the time; none of them waits. `turn` is to be called when `epoll` is readable."""

    def __init__(self, parent: select.epoll) -> None:
        self.epoll = select.epoll()
        parent.register(self.epoll.fileno(), select.EPOLLIN)
        self.endings: dict[str, Ending] = {}
        self.calls: dict[int, Ending] = {}

    # --- the life of a container

    def spawn(self, run: KeeperRun, ignored: list[int]) -> int:
        """Start the shim of the run's current step. Its environment has nothing of the run's. Raises RunRefused."""
        container = run.container
        assert container is not None
        argv = [sys.executable, "-I", "-S", SHIM]
        marks = {name: run.env[name] for name in (MARK, RUN_MARK)}
        try:
            os.chmod(run.dir, WORK_MODE)
            defaults = {"PATH": PATH_DEFAULT, "HOME": run.dir}  # of a process; an image has its own
            env = {name: value for name, value in run.env.items() if defaults.get(name) != value}
            fd = container.share(run.steps[run.step][0], env, first=run.step == 0)
            stderr_fd = run.stderr_fd if run.stderr else run.log_fd
            actions = (
                (os.POSIX_SPAWN_DUP2, fd, 0), (os.POSIX_SPAWN_DUP2, run.log_fd, 1),
                (os.POSIX_SPAWN_DUP2, stderr_fd, 2),
            )  # fmt: skip
            return os.posix_spawn(
                argv[0], argv, marks, file_actions=actions, setsid=True, setsigmask=(), setsigdef=ignored
            )
        except OSError as error:
            raise RunRefused(f"container {container.name}: {error.strerror}") from error

    def is_gone(self, run: KeeperRun, now: int) -> bool:
        """Nothing of a step whose shim has ended is left. Between two steps the container stays.

        A shim that was killed leaves its step behind: the container goes then, and no further step can begin.
        """
        if run.container is None:
            return True
        if not run.cause and not is_last(run) and run.code >= 0:
            return True
        self.end(run, now)
        return self.endings[run.id].is_over

    def problem(self, run: KeeperRun) -> str:
        """Why the shim could not do what it was to do; to be asked at the end of a step."""
        if run.container is None:
            return ""
        findings = run.container.findings()
        run.oom = run.oom or findings.get("oom") is True
        counted = findings.get("usage")
        run.usage = KeeperUsage()  # what was counted before is of shims
        run.usage.counted = counted if isinstance(counted, list) else None
        error = findings.get("error")
        if not isinstance(error, str):
            return ""
        run.cause = run.cause or "error"
        return error

    def end(self, run: KeeperRun, now: int) -> None:
        """See to it that the container of a run is gone, whatever its shim does."""
        if run.container is not None and run.id not in self.endings:
            ending = self.endings[run.id] = Ending(run.id, run.container)
            self._call(ending, now)

    def forget(self, run: KeeperRun, now: int) -> None:
        """The run has ended. Its container may be left where the shim of a later step could not be started."""
        if run.container is not None and run.container.fd >= 0:
            self.end(run, now)
            self.endings[run.id].is_forgotten = True
            self._clear()

    def kill_at_once(self, run: KeeperRun) -> None:
        if run.container is not None:
            kill_first_process(run.container.findings())

    # --- calls

    def next_at(self) -> int:
        return min((ending.due for ending in self.endings.values() if not ending.is_over), default=NEVER)

    def turn(self, now: int) -> None:
        for fd, _ in self.epoll.poll(0) if self.calls else ():
            self._answered(self.calls[fd], now)
        for ending in self.endings.values():
            if not ending.is_over and ending.due <= now:
                if ending.sock is not None:
                    self._failed(ending, "no answer", now)
                else:
                    self._call(ending, now)
        self._clear()

    def _clear(self) -> None:
        for ending in [item for item in self.endings.values() if item.is_over and item.is_forgotten]:
            del self.endings[ending.run_id]
            ending.container.close()

    def _call(self, ending: Ending, now: int) -> None:
        """One connection for each call: an engine that hangs with one may answer another."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path = f"/containers/{ending.container.name}?force=true&v=true"
        try:
            sock.connect(ending.container.socket)
            sock.send(request_bytes("DELETE", path))
        except OSError as error:
            sock.close()
            self._failed(ending, error.strerror or str(error), now)
            return
        ending.sock, ending.head, ending.due = sock, b"", now + ANSWER_MS_MAX
        self.calls[sock.fileno()] = ending
        self.epoll.register(sock.fileno(), select.EPOLLIN)

    def _answered(self, ending: Ending, now: int) -> None:
        assert ending.sock is not None
        try:
            data = ending.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        ending.head += data
        if data and len(ending.head) < HEAD:
            return
        status = ending.head[HEAD - 3 : HEAD]
        if status.isdigit() and int(status) in GONE:
            self._hang_up(ending)
            ending.is_over = True
        else:
            self._failed(ending, f"status {status.decode('latin-1')}" if status else "no answer", now)

    def _failed(self, ending: Ending, why: str, now: int) -> None:
        """An engine that is away cannot end anything: its containers may run on without it."""
        self._hang_up(ending)
        if kill_first_process(ending.container.findings()):
            ending.is_over = True
        ending.due = now + AGAIN_MS
        if not ending.is_logged:
            ending.is_logged = True
            left = "its first process was killed" if ending.is_over else "asked again until it is"
            log(f"container {ending.container.name} is not removed ({why}): {left}")

    def _hang_up(self, ending: Ending) -> None:
        if ending.sock is None:
            return
        self.calls.pop(ending.sock.fileno(), None)
        with suppress(OSError):
            self.epoll.unregister(ending.sock.fileno())
        ending.sock.close()
        ending.sock = None
