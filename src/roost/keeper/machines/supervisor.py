"""The supervisor of one virtual machine: a child of the keeper, in place of the process of a run.

Started by path as `python -I -S supervisor.py`, with what to do as JSON on descriptor 0, a file in memory: its seed may
have secrets. Descriptor 1 is the log, which gets the bytes of the serial console. On descriptor 3 it talks to the
keeper: power commands and leases come in, power states and errors go out. It and its QEMU end with the keeper, and with
the lease, also when the keeper hangs. QEMU ends with it.

Little is loaded before QEMU is started: half of the time to the first output of a saved state would go to that.
"""

import _signal as signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import select
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from roost.keeper.clock import NEVER, now_ms
from roost.keeper.machines.command import command
from roost.keeper.machines.console import SerialConsole
from roost.keeper.machines.disks import DisksRefused, lock, prepare
from roost.keeper.machines.files import OpenFiles
from roost.keeper.machines.order import LINK, MESSAGE_BYTES_MAX, MachineOrder
from roost.keeper.machines.power import PowerHost, PowerSwitch
from roost.keeper.machines.qemu import Qemu
from roost.keeper.machines.tap import TapRefused, open_tap

FAILED = 127


class Supervisor(PowerHost):
    def __init__(self, given: dict[str, object]) -> None:
        self.order = MachineOrder(given["machine"])
        user = given["user"]
        self.user = (int(user[0]), int(user[1])) if isinstance(user, tuple) else None
        self.seed = seed_of(given["seed"])
        self.until = int(str(given["until"])) if given["leased"] else NEVER
        self.link = _socket.socket(fileno=LINK)
        self.link.setblocking(False)
        self.epoll = select.epoll()
        self.power = PowerSwitch(self, self.order.power_serial)
        self.qemu: Qemu | None = None
        self.console = SerialConsole(1, self.epoll) if self.order.has_console else None
        self.lock_fd = -1
        self.has_sandbox = True
        self.from_state = False
        self.note = ""  # for the next report
        self.is_over = False
        self.error = ""

    def run(self) -> int:
        """Until the machine has ended. Raises DisksRefused, TapRefused."""
        self.lock_fd = lock(self.order.dir)
        self.from_state = prepare(self.order) and bool(self.order.state)
        wake_fd = self._catch_signals()
        for fd in (wake_fd, LINK):
            self.epoll.register(fd, select.EPOLLIN)
        self.power.begin(self.order.power, now_ms())
        while not self.is_over:
            at = min(self.power.next_at(), self.until)
            ready = self.epoll.poll(None if at == NEVER else max(0, at - now_ms() + 1) / 1000)
            self._turn({fd for fd, _ in ready}, wake_fd, now_ms())
        if self.qemu is not None:
            self.qemu.kill()
        return FAILED if self.error else 0

    def _catch_signals(self) -> int:
        wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        return wake_fd

    def _turn(self, ready: set[int], wake_fd: int, now: int) -> None:
        """The lease first: orders that came while we hung may renew it."""
        if LINK in ready:
            self._read_link(now)
        if self.until <= now:
            self._finish("lease")
            return
        if self.qemu is not None:
            self.qemu.turn(ready, now)
        if self.console is not None:
            self.console.turn(ready)
        if wake_fd in ready:
            if signal.SIGTERM in os.read(wake_fd, 4096):
                self.power.terminate(now)
            self._look_at_qemu(now)
        self.power.tick(now)

    def _look_at_qemu(self, now: int) -> None:
        qemu = self.qemu
        if qemu is None or not qemu.has_ended():
            return
        if self.console is not None:
            self.console.disconnect()
        self.qemu = None
        if self.has_sandbox and qemu.lacks_sandbox():
            self.has_sandbox = False
            self.launch()
        elif problem := "" if self.power.is_ending else qemu.lacks_state():
            self.from_state = False
            self.note = f"it was booted, as its saved state could not be used: {problem}"
            self.launch()
        else:
            self.power.left(qemu.why_ended(), now)

    # --- the keeper

    def _read_link(self, now: int) -> None:
        while not self.is_over:
            try:
                data = self.link.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._finish("keeper")  # it is gone, and nothing may run without it
                return
            message = marshal.loads(data)
            if message["do"] == "lease":
                self.until = message["until"]
            else:
                self.power.command(message["serial"], message["action"], message["grace_ms"], now)

    def _tell(self, **news: object) -> None:
        """A keeper that hangs gets what fits: the newest state is what it asks for."""
        try:
            self.link.send(marshal.dumps(news))
        except OSError:
            pass

    def _finish(self, cause: str) -> None:
        self.is_over = True
        if self.qemu is not None:
            self.qemu.kill()
        self._tell(cause=cause)
        os.kill(os.getpid(), signal.SIGKILL)  # as the keeper would have it

    # --- what the machine's power asks for

    def launch(self) -> None:
        network = self.order.network
        files = OpenFiles(self.order, self.seed, copies=self.user is not None, from_state=self.from_state)
        tap = -1
        (qmp, qmp_end), (console, console_end) = _socket.socketpair(), _socket.socketpair()
        try:
            tap = open_tap(str(network["bridge"])) if network.get("mode") == "bridge" else -1
            fds = {"qmp_fd": qmp_end.fileno(), "tap_fd": tap}
            fds["console_fd"] = console_end.fileno() if self.order.has_console else -1
            argv = command(self.order, files.named, **fds, has_sandbox=self.has_sandbox)
            inherited = [fd for fd in (*fds.values(), self.lock_fd, *files.fds) if fd >= 0]
            self.qemu = Qemu(argv, inherited, qmp, self.user, self.power, self.epoll, files.named.state_fd)
        finally:
            files.close()
            qmp_end.close()
            console_end.close()
            if tap >= 0:
                os.close(tap)
        if self.console is not None:
            self.console.connect(console)

    def call(self, name: str) -> None:
        if self.qemu is not None:
            self.qemu.call(name)

    def kill(self) -> None:
        if self.qemu is not None:
            self.qemu.kill()

    def report(self, power: str, serial: int, problem: str) -> None:
        self.from_state = self.from_state and power == "stopped"  # from now on its disks are its own
        self._tell(power=power, serial=serial, problem=problem or self.note)
        self.note = ""

    def end(self, error: str) -> None:
        self.is_over, self.error = True, error
        if error:
            self._tell(error=error)


def seed_of(given: object) -> bytes:
    """The disk of cloud-init, if the run has one. Its texts are any bytes, as in environments."""
    files = given if isinstance(given, dict) else {}
    if not files:
        return b""
    from roost.keeper.machines.seed import seed

    return seed({name: os.fsencode(text) for name, text in files.items()})


def main() -> int:
    order = marshal.loads(os.pread(0, os.fstat(0).st_size, 0))
    supervisor = Supervisor(order)
    try:
        return supervisor.run()
    except (DisksRefused, TapRefused) as error:
        supervisor.end(str(error))
        return FAILED
    finally:
        if supervisor.console is not None:
            supervisor.console.close()


if __name__ == "__main__":
    sys.exit(main())
