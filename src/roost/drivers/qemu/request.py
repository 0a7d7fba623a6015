"""What a virtual machine of a run is made of: from its document, the order, and what the node offers."""

import hashlib
import os

import msgspec

from roost.drivers.qemu.host import MachineHost, MachineWanted
from roost.drivers.qemu.images import check_source, sole_file
from roost.model.errors import Invalid
from roost.model.protocol import Run
from roost.model.spec.document import Document
from roost.model.spec.files import BLOB
from roost.model.spec.resources import read_resource
from roost.model.spec.runs.vm import ROOT, SOURCES, Accel, Console, DiskBlock, Firmware, VmBlock, processors, root_bytes
from roost.model.spec.units import byte_count, duration_ms
from roost.model.states import Power
from roost.ports.driver import Machine, MachineDisk, MachineNetwork

DIGITS_MAX = 18  # of a number that a server may have given


class NoQemu(Invalid):
    """There is none on this node, now."""


def machine(host: MachineHost, document: Document, run: Run, folder: str) -> Machine:
    """Files that are inputs are folders here, and those that the node does not have are empty.

    Raises Invalid when this node cannot do it.
    """
    block = document.vm
    if block is None:
        raise Invalid("vm", "this agent cannot read it")
    if host.qemu is None:
        raise NoQemu("vm", "there is no QEMU on this node")
    has_kvm = host.qemu.has_kvm
    if block.accel == Accel.KVM and not has_kvm:
        raise Invalid("vm.accel", "this node has no KVM that works")
    if block.firmware == Firmware.UEFI and not host.qemu.firmware:
        raise Invalid("vm.firmware", "this node has no UEFI firmware")
    paths = {name: _place(host, name, source, folder) for name, source in sources_of(block).items()}
    return Machine(
        dir=f"{host.directory}/{machine_name(run)}",
        program=host.qemu.program,
        memory=read_resource("memory", document.resources.get("memory", 0), "resources.memory"),
        processors=processors(document.resources, "resources"),
        accel="kvm" if has_kvm and block.accel != Accel.TCG else "tcg",
        firmware=host.qemu.firmware if block.firmware == Firmware.UEFI else "",
        kernel=paths.get("kernel", ""),
        initrd=paths.get("initrd", ""),
        cmdline=block.cmdline,
        disks=_disks(document, block, run, paths.get("image")),
        network=_network(host, document, block, run),
        has_console=block.console != Console.NONE,
        has_seed=block.cloud_init is not None,
        power=Power.STOPPED if run.power == Power.STOPPED else Power.RUNNING,
    )


def sources_of(block: VmBlock) -> dict[str, str]:
    """What a document calls the files of its machine, by their fields."""
    return {name: getattr(block, name) for name in SOURCES if getattr(block, name)}


def machine_name(run: Run) -> str:
    """Of an instance, the same for each of its attempts, and for no other instance of this node."""
    return f"{run.workload.replace('/', '~')}.{run.serial}.{run.index}"


def instance_of(name: str) -> tuple[str, int, int] | None:
    """The inverse: workload, serial and index. None: it is the name of no machine."""
    workload, *numbers = name.replace("~", "/", 1).rsplit(".", 2)
    is_known = len(numbers) == 2 and "/" in workload and all(map(str.isdecimal, numbers))
    if not is_known or max(map(len, numbers)) > DIGITS_MAX:
        return None
    return workload, int(numbers[0]), int(numbers[1])


def find_files(wanted: MachineWanted) -> Machine:
    """The machine with the files it is made of, each checked. Raises ImageUnavailable. Blocks."""
    found = wanted.machine
    root = next((disk for disk in found.disks if disk.name == ROOT), None)
    paths = {"kernel": found.kernel, "initrd": found.initrd, "image": root.base if root is not None else ""}
    for field, source in wanted.sources.items():
        if source.startswith(BLOB):
            paths[field] = sole_file(source, paths[field])
        size = root.size if root is not None else 0
        check_source(source, field, paths[field], wanted.arch, size, disk_bytes_of(found.dir))
    disks = [
        msgspec.structs.replace(disk, base=paths["image"]) if disk.name == ROOT else disk for disk in found.disks
    ]  # fmt: skip
    return msgspec.structs.replace(found, kernel=paths["kernel"], initrd=paths["initrd"], disks=disks)


def disk_bytes_of(path: str) -> int:
    """The size of the file system where a directory is, or will be."""
    while not os.path.exists(path):
        path = os.path.dirname(path) or "/"
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def _place(host: MachineHost, field: str, source: str, folder: str) -> str:
    if source.startswith(BLOB):
        return f"{folder}/{field}"
    return os.path.realpath(host.images[source]) if source in host.images else ""


def _disks(document: Document, block: VmBlock, run: Run, base: str | None) -> list[MachineDisk]:
    found = []
    if base is not None:
        disk = read_resource("disk", document.resources.get("disk", 0), "resources.disk")
        content = next((item.digest for item in run.inputs if item.to == "image"), "")
        found.append(MachineDisk(ROOT, root_bytes(block, disk), base, content))
    return found + [_disk(disk, f"vm.disks[{index}]") for index, disk in enumerate(block.disks)]


def _disk(block: DiskBlock, path: str) -> MachineDisk:
    retention_ms = 0 if block.retention is None else duration_ms(block.retention, f"{path}.retention")
    return MachineDisk(block.name, byte_count(block.size, f"{path}.size"), retention_ms=retention_ms)


def _network(host: MachineHost, document: Document, block: VmBlock, run: Run) -> MachineNetwork:
    network = block.network
    bridge = host.bridges.get(network.bridge, "")
    if network.bridge and not bridge:
        raise Invalid("vm.network.bridge", f"this node has no bridge {network.bridge}")
    ports = dict(zip(document.ports, run.ports, strict=False))
    forward = [(ports[name], port) for name, port in network.forward.items() if name in ports]
    return MachineNetwork(str(network.mode), mac_of(run), bridge, network.restrict, forward)


def mac_of(run: Run) -> str:
    """An address of QEMU's own range that stays with an instance, so that its leases and licences do."""
    drawn = hashlib.sha256(machine_name(run).encode()).digest()
    return f"52:54:00:{drawn[0]:02x}:{drawn[1]:02x}:{drawn[2]:02x}"
