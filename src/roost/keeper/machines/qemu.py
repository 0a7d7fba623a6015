"""One process of QEMU: started so that it ends with us, asked over QMP, and why it ended."""

import _signal as signal  # type: ignore[import-not-found]
import _socket
import ctypes
import os
import select

from roost.keeper.clock import now_ms
from roost.keeper.machines.power import PowerSwitch

STDERR_BYTES_MAX = 2_000  # of its end
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_NOT_EXECUTED = 126


class Qemu:
    """What happens goes to `power`."""

    def __init__(
        self, argv: list[str], fds: list[int], qmp: _socket.socket, user: tuple[int, int] | None, power: PowerSwitch,
        epoll: select.epoll, state_fd: int = -1,
    ) -> None:  # fmt: skip
        self.power = power
        self.state_fd = state_fd  # of the state that it is to go on from
        self.epoll = epoll
        self.stderr_fd, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(stderr, True)
        self.stderr = b""
        self.status: int | None = None
        self.answered_once = False
        self.has_panicked = False
        self.is_killed = False
        self.pid = start(argv, fds, stderr, user)
        os.close(stderr)
        from roost.keeper.machines.qmp import Qmp  # only now: QEMU starts meanwhile

        self.qmp: Qmp | None = Qmp(qmp, self._ready, self._event)
        self.qmp_fd = qmp.fileno()
        for fd in (self.qmp_fd, self.stderr_fd):
            epoll.register(fd, select.EPOLLIN)

    def turn(self, ready: set[int], now: int) -> None:
        if self.stderr_fd in ready:
            self._read_stderr()
        if self.qmp_fd in ready and self.qmp is not None:
            if not self.qmp.read():
                self._hang_up()  # its end comes as a signal
        if self.qmp is not None:
            self.qmp.flush()

    def call(self, name: str) -> None:
        if self.qmp is not None:
            self.qmp.call(name, None, lambda result, error: self.power.answered(name, error, now_ms()))

    def kill(self) -> None:
        self.is_killed = True
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Take in its end. What it had to say is read before: events, and its last output."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return False
            self.status = os.waitstatus_to_exitcode(status)
            while self.qmp is not None and self.qmp.read():
                pass
            self._hang_up()
            self._read_stderr()
            self.epoll.unregister(self.stderr_fd)
            os.close(self.stderr_fd)
        return True

    def lacks_sandbox(self) -> bool:
        """Whether it did not start because it cannot limit its own system calls here."""
        return not self.answered_once and (b"sandbox" in self.stderr or b"seccomp" in self.stderr)

    def lacks_state(self) -> str:
        """Why it could not go on from the saved state, if that is why it has ended."""
        if self.state_fd < 0 or self.answered_once:
            return ""
        return self.stderr.decode(errors="replace").strip() or "QEMU ended while it read it"

    def why_ended(self) -> str:
        """Nothing: the guest has powered off, or it was ended on request."""
        stderr = self.stderr.decode(errors="replace").strip()
        if self.has_panicked:
            return "the guest's kernel has panicked; its log has the reason"
        if self.is_killed or self.status == 0:
            return ""
        assert self.status is not None
        how = f"was ended by signal {-self.status}" if self.status < 0 else f"ended with code {self.status}"
        return f"QEMU {how}: {stderr}" if stderr else f"QEMU {how}"

    # --- what it says

    def _ready(self) -> None:
        if self.state_fd < 0 or self.qmp is None:
            self._begun()
            return
        events: dict[str, object] = {"capabilities": [{"capability": "events", "state": True}]}
        self.qmp.call("migrate-set-capabilities", events, lambda result, error: None)
        self.qmp.call("migrate-incoming", {"uri": f"fd:{self.state_fd}"}, lambda result, error: self._refused(error))

    def _begun(self) -> None:
        self.answered_once = True
        self.power.booted(now_ms())

    def _refused(self, error: str) -> None:
        if error:
            self.stderr += error.encode()
            self.kill()

    def _event(self, name: str, data: dict[str, object]) -> None:
        if name == "MIGRATION" and self.qmp is not None and not self.answered_once:
            if data.get("status") == "completed":
                self.qmp.call("cont", None, lambda result, error: self._begun())
            elif data.get("status") == "failed":
                self.kill()
        elif name == "GUEST_PANICKED":
            self.has_panicked = True
        elif name in ("STOP", "RESUME") and self.answered_once:
            self.power.changed(is_paused=name == "STOP")

    def _read_stderr(self) -> None:
        while True:
            try:
                data = os.read(self.stderr_fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self.stderr = (self.stderr + data)[-STDERR_BYTES_MAX:]

    def _hang_up(self) -> None:
        if self.qmp is not None:
            self.epoll.unregister(self.qmp_fd)
            self.qmp.close()
        self.qmp = None


def start(argv: list[str], fds: list[int], stderr: int, user: tuple[int, int] | None) -> int:
    """A child that is killed when we die, however that happens. `user`: whose it is; None: ours.

    It has these descriptors, and no output but stderr. It stays in our process group, which the keeper kills, and has
    our environment: by its marks it is found.
    """
    library = ctypes.CDLL(None)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        if user is not None:
            os.setgroups([])
            os.setgid(user[1])
            os.setuid(user[0])
            library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # last: a change of the user takes it back
        if os.getppid() != parent:
            os._exit(_NOT_EXECUTED)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(stderr, 2)
        for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in fds:
            os.set_inheritable(fd, True)
        os.closerange(3, min(fds))
        os.execve(argv[0], argv, dict(os.environ))
    except OSError as error:
        os.write(stderr, f"{argv[0]}: {error.strerror}".encode())
    finally:
        os._exit(_NOT_EXECUTED)
