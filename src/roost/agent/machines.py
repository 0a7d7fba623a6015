"""The node's QEMU, images and bridges, watched: they come and go."""

import asyncio
import time
from collections.abc import Callable

from roost.agent.files.job import in_thread
from roost.agent.log import log
from roost.drivers.qemu.host import MachineHost, QemuProgram
from roost.drivers.qemu.probe import find_qemu, look_again
from roost.keeper.machines.retention import sweep

LOOK_S = 30.0  # between two looks
FIRST_S_MAX = 1.0  # to ask QEMU for its release takes 0.1 s; after that the node begins without machines


class MachineWatch:
    """`changed` is called with what machines are made with, when that has changed.

    `named`: images and bridges as the operator named them. `wanted`: a program, `auto` or `none`.
    """

    def __init__(self, named: MachineHost, wanted: str, arch: str, changed: Callable[[MachineHost], None]) -> None:
        self._named = named
        self._wanted = wanted
        self._arch = arch
        self._changed = changed
        self._qemu: QemuProgram | None = None
        self._host = MachineHost(named.directory)
        self._first: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Before the node takes work, if it does not take long: a trial of KVM that does not work does."""
        self._first = asyncio.ensure_future(self.probe())
        await asyncio.wait((self._first,), timeout=FIRST_S_MAX)

    async def run(self) -> None:
        if self._first is not None:
            await self._first
        while True:
            for path in await in_thread("qemu", lambda: sweep(self._named.directory, time.time())):
                log(f"virtual machines: removed {path}, which is not kept any longer")
            await asyncio.sleep(LOOK_S)
            await self.probe()

    async def probe(self) -> None:
        if self._qemu is None:
            self._qemu = await in_thread("qemu", lambda: find_qemu(self._wanted, self._arch))
        host = await in_thread("qemu", lambda: look_again(self._named, self._qemu))
        if host.qemu is None:
            self._qemu = None
        if host != self._host:
            self._log(host)
            self._host = host
            self._changed(host)

    def _log(self, host: MachineHost) -> None:
        if host.qemu != self._host.qemu:
            accel = "KVM" if host.qemu is not None and host.qemu.has_kvm else "without KVM: processors are emulated"
            log(f"virtual machines: QEMU {host.qemu.version}, {accel}" if host.qemu else "virtual machines: no QEMU")
        for kind, before, now in (
            ("image", self._host.images, host.images),
            ("bridge", self._host.bridges, host.bridges),
        ):
            for name in before.keys() - now.keys():
                log(f"virtual machines: the {kind} {name} is gone ({before[name]})")
