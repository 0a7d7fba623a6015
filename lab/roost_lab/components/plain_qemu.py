"""QEMU without a keeper, with the same flags: what a supervisor is measured against, and what saves a state."""

import json
import os
import socket
import subprocess
import time
from typing import Any, Self

from roost.keeper.machines.command import command
from roost.keeper.machines.disks import prepare
from roost.keeper.machines.files import OpenFiles
from roost.keeper.machines.order import MachineOrder

ANSWER_S = 60.0  # of QEMU, and of its guest: it has booted within 5 s on a machine at rest
PAUSE_S = 0.002


class PlainQemu:
    """`machine` is as in an order to a keeper (ports/driver.Machine)."""

    def __init__(self, machine: dict[str, Any]) -> None:
        order = MachineOrder(machine)
        if order.disks:
            os.makedirs(order.dir, exist_ok=True)
            prepare(order)
        files = OpenFiles(order, b"", copies=False, from_state=bool(order.state))
        self.qmp, qmp = socket.socketpair()
        self.console, console = socket.socketpair()
        with qmp, console:
            argv = command(order, files.named, qmp_fd=qmp.fileno(), console_fd=console.fileno())
            inherited = [qmp.fileno(), console.fileno(), *files.fds]
            self.process = subprocess.Popen(argv, pass_fds=inherited, stdin=subprocess.DEVNULL)
        files.close()
        self.lines = self.qmp.makefile("rb")
        self.qmp.settimeout(ANSWER_S)
        self.console.settimeout(ANSWER_S)
        self.lines.readline()
        self.call("qmp_capabilities")
        if order.state:
            self.call("migrate-incoming", uri=f"fd:{files.named.state_fd}")
            self._wait_for("status", "query-status", "inmigrate", is_over=lambda status: status != "inmigrate")
            self.call("cont")

    def call(self, name: str, *fds: int, **arguments: object) -> dict[str, Any]:
        message = json.dumps({"execute": name, "arguments": arguments}).encode()
        socket.send_fds(self.qmp, [message], list(fds))
        while True:
            answer = json.loads(self.lines.readline())
            if "event" not in answer:
                assert "error" not in answer, answer
                found = answer["return"]
                return found if isinstance(found, dict) else {}

    def until(self, text: bytes) -> bytes:
        """Its console, up to this text."""
        found = b""
        while text not in found:
            data = self.console.recv(1 << 16)
            assert data, (found, self.process.wait())
            found += data
        return found

    def save(self, path: str) -> None:
        """Its state, now; then it is stopped."""
        self.call("stop")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.call("getfd", fd, fdname="state")
        os.close(fd)
        self.call("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self.call("migrate", uri="fd:state")
        self._wait_for("status", "query-migrate", "completed", is_over=lambda status: status in ("completed", "failed"))

    def _wait_for(self, field: str, name: str, wanted: str, *, is_over: Any) -> None:
        deadline = time.monotonic() + ANSWER_S
        while not is_over(self.call(name).get(field)):
            assert time.monotonic() < deadline, f"{name} is not {wanted}"
            time.sleep(PAUSE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.qmp.close()
        self.console.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
