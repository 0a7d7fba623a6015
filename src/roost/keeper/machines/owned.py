"""Virtual machines of runs, as the keeper has them: it starts their supervisors, and passes on commands and leases."""

import marshal
import os
import select
import signal
import socket
import sys
from contextlib import suppress

from roost.keeper.machines.console import SOCKET_NAME
from roost.keeper.machines.order import LINK, MESSAGE_BYTES_MAX
from roost.keeper.machines.retention import used
from roost.keeper.processes import MARK, RUN_MARK
from roost.keeper.rules import Rules
from roost.keeper.run import PATH_DEFAULT, KeeperRun, RunRefused, in_place

NO_USER = 65_534  # it owns no files
KVM = "/dev/kvm"
SUPERVISOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py")


class Machines:
    """Every method gets the time; none of them waits. `turn` is to be called when `epoll` is readable."""

    def __init__(self, rules: Rules, parent: select.epoll) -> None:
        self.rules = rules
        self.epoll = select.epoll()
        parent.register(self.epoll.fileno(), select.EPOLLIN)
        self.links: dict[str, socket.socket] = {}
        self.by_fd: dict[int, KeeperRun] = {}
        self.lease_until = 0

    def spawn(self, run: KeeperRun, ignored: list[int]) -> int:
        """Start the supervisor of a run. Its environment has nothing of the run's. Raises RunRefused."""
        machine = run.machine
        assert machine is not None
        argv = [sys.executable, "-I", "-S", SUPERVISOR]
        env = {"PATH": PATH_DEFAULT} | {name: run.env[name] for name in (MARK, RUN_MARK)}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            fd = machine.share(run.env, leased=run.leased, until=self.rules.lease_until, user=user_of(run))
            actions = (
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), LINK), (os.POSIX_SPAWN_DUP2, fd, 0),
                (os.POSIX_SPAWN_DUP2, run.log_fd, 1),
            )  # fmt: skip
            with in_place(run):
                pid = os.posix_spawn(
                    argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=ignored
                )
        except OSError as error:
            ours.close()
            raise RunRefused(f"virtual machine: {error.strerror}") from error
        except RunRefused:
            ours.close()
            raise
        finally:
            theirs.close()
            machine.close()
        ours.setblocking(False)
        self.links[run.id], self.by_fd[ours.fileno()] = ours, run
        self.epoll.register(ours.fileno(), select.EPOLLIN)
        return pid

    def terminate(self, run: KeeperRun) -> None:
        """Not its QEMU, which would end at once: the guest is to power off."""
        with suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGTERM)

    def command(self, run: KeeperRun, serial: int, action: str, grace_ms: int) -> None:
        self._send(run.id, {"do": "power", "serial": serial, "action": action, "grace_ms": grace_ms})

    def turn(self, now: int) -> None:
        for fd, _ in self.epoll.poll(0) if self.links else ():
            self._read(self.by_fd[fd], now)
        if self.links and self.rules.lease_until != self.lease_until:
            self.lease_until = self.rules.lease_until
            for run in self.by_fd.values():
                if run.leased:
                    self._send(run.id, {"do": "lease", "until": self.lease_until})

    def ended(self, run: KeeperRun, now: int) -> str:
        """Its supervisor has ended: why the machine could not run, or nothing."""
        if run.id in self.links:
            self._read(run, now)
        if run.id in self.links:
            self._hang_up(run)
        with suppress(OSError):  # of a supervisor that was killed
            os.unlink(f"{run.dir}/{SOCKET_NAME}")
        if run.machine is not None:
            used(run.machine.dir)
        return run.machine_error

    def _send(self, run_id: str, message: dict[str, object]) -> None:
        """A supervisor that hangs gets what fits: it ends with its lease, and is killed after its grace."""
        if run_id in self.links:
            with suppress(OSError):
                self.links[run_id].send(marshal.dumps(message))

    def _read(self, run: KeeperRun, now: int) -> None:
        link = self.links[run.id]
        while True:
            try:
                data = link.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._hang_up(run)
                return
            news = marshal.loads(data)
            if "power" in news:
                self.rules.powered(run, news["power"], news["serial"], news["problem"], now)
            elif news.get("cause") == "lease":
                run.cause = run.cause or "lease"
            elif "error" in news:
                run.machine_error = str(news["error"])

    def _hang_up(self, run: KeeperRun) -> None:
        link = self.links.pop(run.id)
        del self.by_fd[link.fileno()]
        self.epoll.unregister(link.fileno())
        link.close()


def user_of(run: KeeperRun) -> tuple[int, int] | None:
    """The user of QEMU; None: ours. A guest that breaks out of QEMU is not to be root."""
    if os.geteuid() != 0:
        return None
    machine = run.machine
    if machine is not None and machine.accel == "kvm" and os.stat(KVM).st_mode & 0o006 != 0o006:
        return None  # only root may use it
    user, group = (run.isolation.user, run.isolation.group) if run.isolation is not None else (NO_USER, NO_USER)
    return (user, group) if user else None
