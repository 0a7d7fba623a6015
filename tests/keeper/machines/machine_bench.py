"""Runs of a real keeper that are virtual machines, and what tests ask about them."""

from pathlib import Path
from typing import Any

from tests.components.guest import MEMORY, shared_guest
from tests.keeper.keeper_harness import Client, Event, KeeperHarness, alive, children, until

BOOT_S = 120.0  # 4.5 s on a machine at rest, without KVM


class MachineBench:
    def __init__(self, tmp_path: Path) -> None:
        self.guest = shared_guest()
        self.harness = KeeperHarness(tmp_path)
        self.keeper = self.harness.keeper()
        self.client = self.harness.client()
        self.disks = tmp_path / "machines"

    def machine(self, script: str, **more: Any) -> Event:
        """As ports/driver.Machine. The script runs in the guest; at its end the guest powers off."""
        guest = self.guest
        return {
            "dir": str(self.disks / "m"), "program": guest.program, "memory": MEMORY, "kernel": guest.kernel,
            "initrd": guest.initrd, "cmdline": guest.cmdline(script),
        } | more  # fmt: skip

    def start(self, id: str, script: str, machine: Event | None = None, **more: Any) -> Event:
        """Order a run; its supervisor begins at once."""
        order = self.order(id, script, machine, **more)
        self.client.send(order)
        return order

    def order(self, id: str, script: str, machine: Event | None = None, **more: Any) -> Event:
        return self.harness.order(id, ["vm"], machine=self.machine(script, **machine or {}), **more)

    def power(self, id: str, serial: int, action: str, grace_ms: int = 60_000) -> None:
        self.client.send({"do": "power", "id": id, "serial": serial, "action": action, "grace_ms": grace_ms})

    def powered(self, id: str) -> tuple[str, int, str]:
        """The next news of its power."""
        news = self.client.next("power", id)
        return news["power"], news["serial"], news["problem"]

    def writes(self, id: str, text: bytes, count: int = 1) -> None:
        until(lambda: self.harness.log(id).count(text) >= count, f"{text!r} in {self.harness.log(id)[-500:]!r}", BOOT_S)

    def supervisor(self, id: str) -> int:
        """Its process; the run has been started."""
        return next(pid for pid in children(self.keeper.pid) if f"ROOST_RUN={id}".encode() in environ(pid))

    def qemu(self, id: str) -> int:
        pids = until(lambda: children(self.supervisor(id)), f"QEMU of {id}")
        until(lambda: b"qemu" in Path(f"/proc/{pids[0]}/cmdline").read_bytes(), "QEMU to begin")
        return pids[0]

    def reconnect(self) -> Client:
        """As an agent that was started again."""
        self.client.socket.close()
        self.client = self.harness.client()
        return self.client

    def close(self) -> None:
        self.harness.close()


def environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def gone(*pids: int) -> None:
    until(lambda: not any(alive(pid) for pid in pids), f"{pids} to end")
