"""The node's QEMU, images and bridges, watched: they come and go."""

import asyncio
import os
import time
from collections.abc import Callable

import grpc

from roost.agent.files.client import Call
from roost.agent.files.job import in_thread
from roost.agent.log import log
from roost.drivers.qemu.host import MachineHost, QemuProgram
from roost.drivers.qemu.probe import find_qemu, look_again
from roost.drivers.qemu.request import instance_of
from roost.keeper.machines.retention import sweep, used
from roost.wire import agent_pb2 as pb

MACHINES_MAX = 1_000  # in one question, as servers take them
NOTE_NAME = "qemu.json"  # in the agent's directory
LOOK_S = 30.0  # between two looks
FIRST_S_MAX = 1.0  # to ask QEMU for its release takes 0.1 s; after that the node begins without machines


class MachineWatch:
    """`changed` is called with what machines are made with, when that has changed.

    `named`: images and bridges as the operator named them. `wanted`: a program, `auto` or `none`.
    `call`: to the server.
    """

    def __init__(
        self, named: MachineHost, wanted: str, arch: str, call: Call, changed: Callable[[MachineHost], None]
    ) -> None:
        self._named = named
        self._note = os.path.join(os.path.dirname(named.directory), NOTE_NAME) if named.directory else ""
        self._wanted = wanted
        self._arch = arch
        self._call = call
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
            await self.tidy()
            await asyncio.sleep(LOOK_S)
            await self.probe()

    async def tidy(self) -> None:
        """Remove disks whose retention is over. It counts from when the server says that their machine has ended:
        a node that was off for a day still has those of its machines."""
        root = self._named.directory
        names = [name for name in await in_thread("qemu", lambda: listed(root)) if instance_of(name) is not None]
        for first in range(0, len(names), MACHINES_MAX):
            try:
                live = await self._ask(names[first : first + MACHINES_MAX])
            except (grpc.RpcError, ConnectionError):
                return  # nothing is removed without the word of a server
            for name in live:
                used(f"{root}/{name}")
        for path in await in_thread("qemu", lambda: sweep(root, time.time())):
            log(f"virtual machines: removed {path}, whose retention is over")

    async def _ask(self, names: list[str]) -> list[str]:
        """Those of machines that may start again."""
        known = {found: name for name in names if (found := instance_of(name)) is not None}
        asked = [pb.MachineName(workload=workload, serial=serial, index=index) for workload, serial, index in known]
        data = await self._call("LiveMachines", pb.LiveMachinesRequest(machines=asked).SerializeToString())
        live = [(item.workload, item.serial, item.index) for item in pb.LiveMachinesReply.FromString(data).machines]
        return [known[item] for item in live if item in known]

    async def probe(self) -> None:
        if self._qemu is None:
            self._qemu = await in_thread("qemu", lambda: find_qemu(self._wanted, self._arch, self._note))
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


def listed(directory: str) -> list[str]:
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []
