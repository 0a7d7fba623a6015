"""What a document says about a virtual machine: the `vm` block, checked, and what a node has to have for it."""

import json
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.files import FileSet, Input
from roost.model.records.secret import FromSecret
from roost.model.spec.files import BLOB
from roost.model.spec.names import check_name
from roost.model.spec.placement import between
from roost.model.spec.problems import Problems, check_each, indexed
from roost.model.spec.units import Quantity, byte_count, cpu_milli, duration_ms
from roost.model.states import Move, StderrMode, WorkloadKind

SOURCES = ("image", "kernel", "initrd")  # the files that a machine is made of, and their names in its work directory
ONLY_VMS = "only a workload of `kind: vm` has this"
NOT_OF_VMS = {
    "command": "its image says what runs in it",
    "steps": "its image says what runs in it",
    "container": "its image is a disk",
    "volumes": "give it `vm.disks`",
    "env": "use `vm.cloud_init`",
    "inputs": "use `vm.cloud_init`",
    "outputs": "fetch files over its network",
    "cache": "its disks stay",
}
ROOT = "root"  # the disk of its image


class Firmware(StrEnum):
    BIOS = "bios"
    UEFI = "uefi"


class VmNetwork(StrEnum):
    """What a machine reaches: others through its node, a bridge that the operator named, or nothing."""

    USER = "user"
    BRIDGE = "bridge"
    NONE = "none"


class Console(StrEnum):
    SERIAL = "serial"
    NONE = "none"


class Accel(StrEnum):
    """How its processors run: by the node's own (kvm), translated (tcg), or the better of what the node has."""

    AUTO = "auto"
    KVM = "kvm"
    TCG = "tcg"


class NetworkBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    mode: VmNetwork = VmNetwork.USER
    bridge: str = ""
    restrict: bool = False  # it reaches nothing; only its forwarded ports are reached
    forward: dict[str, int] = {}  # a name of `ports`: the port in the machine


class DiskBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    size: int | str
    retention: int | float | str | None = None  # how long it stays on its node when the workload is gone


class CloudInitBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Files of a NoCloud seed. `{secret: NAME}` stands for a secret's value wherever a text may be."""

    user_data: str | dict[str, Any] = ""
    meta_data: dict[str, Any] = {}
    network: dict[str, Any] = {}


class VmBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    image: str = ""
    kernel: str = ""
    initrd: str = ""
    cmdline: str = ""
    disk_size: int | str | None = None
    disks: list[DiskBlock] = []
    firmware: Firmware = Firmware.BIOS
    network: NetworkBlock = msgspec.field(default_factory=NetworkBlock)
    cloud_init: CloudInitBlock | None = None
    console: Console = Console.SERIAL
    accel: Accel = Accel.AUTO


class VmDocument(Protocol):
    """The fields of a document that matter here."""

    kind: WorkloadKind
    move: Move | None
    preemptible: bool | None
    ports: dict[str, int]
    resources: dict[str, int | float | str]
    stderr: StderrMode
    vm: VmBlock | None


def check_vm(document: VmDocument, path: str) -> VmBlock | None:
    """The block, if there is nothing wrong with it. `path`: of the document, with a dot if it is not empty."""
    if document.kind != WorkloadKind.VM:
        for name in ("vm", "move"):
            if getattr(document, name) is not None:
                raise Invalid(f"{path}{name}", ONLY_VMS)
        return None
    if document.vm is None:
        raise Invalid(f"{path}vm", "a vm is made of an image or a kernel; write `vm: {image: NAME}`")
    problems, block, here = Problems(), document.vm, f"{path}vm"
    problems.check(_check_fields, document, path)
    problems.check(_check_preemptible, document, path)
    problems.check(_check_resources, document.resources, f"{path}resources")
    problems.check(_check_sources, block, here)
    problems.check(_check_disks, block, here)
    problems.check(_check_network, block.network, document.ports, path)
    problems.check(_check_seed, block.cloud_init, f"{here}.cloud_init")
    problems.refuse()
    return block


def _check_fields(document: VmDocument, path: str) -> None:
    for name, instead in NOT_OF_VMS.items():
        if getattr(document, name):
            raise Invalid(f"{path}{name}", f"a vm has no {name}; {instead}")
    if document.stderr != StderrMode.MERGE:
        raise Invalid(f"{path}stderr", "a vm has one console, and one log")


def _check_preemptible(document: VmDocument, path: str) -> None:
    if document.preemptible and document.move != Move.COLD:
        message = "preemption stops a vm, and starts it again later or elsewhere; allow that with `move: cold`"
        raise Invalid(f"{path}preemptible", message)


def _check_resources(resources: dict[str, int | float | str], path: str) -> None:
    if resources.get("gpu"):
        raise Invalid(f"{path}.gpu", "the GPUs of a node are not given to a vm")
    memory = byte_count(resources["memory"], f"{path}.memory") if "memory" in resources else 0
    if memory < limits.VM_MEMORY_MIN:
        least = limits.VM_MEMORY_MIN >> 20
        raise Invalid(f"{path}.memory", f"a vm needs its memory here, like 2GiB, and at least {least} MiB")
    processors(resources, path)


def processors(resources: dict[str, int | float | str], path: str) -> int:
    """How many a machine has: as many as the cores that it may use, rounded up."""
    count = -(-cpu_milli(resources.get("cpu", 1), f"{path}.cpu") // 1_000)
    between(count, 1, limits.VM_PROCESSORS_MAX, f"{path}.cpu", "processors of a vm")
    return count


def _check_sources(block: VmBlock, path: str) -> None:
    if not block.image and not block.kernel:
        raise Invalid(f"{path}.image", "give an image or a kernel")
    for name in SOURCES:
        _check_source(getattr(block, name), f"{path}.{name}")
    for name in ("initrd", "cmdline"):
        if getattr(block, name) and not block.kernel:
            raise Invalid(f"{path}.{name}", "belongs to a kernel")
    if len(block.cmdline) > limits.VM_CMDLINE_MAX or not block.cmdline.isprintable():
        raise Invalid(f"{path}.cmdline", f"is one line of at most {limits.VM_CMDLINE_MAX} characters")
    if block.disk_size is not None and not block.image:
        raise Invalid(f"{path}.disk_size", "belongs to an image; give the machine `disks`")


def _check_source(source: str, path: str) -> None:
    """A name that operators of nodes gave to a file, or named files of the project."""
    if source:
        check_name(source.removeprefix(BLOB), path)


def _check_disks(block: VmBlock, path: str) -> None:
    if block.disk_size is not None:
        _size(block.disk_size, f"{path}.disk_size")
    here = f"{path}.disks"
    between(len(block.disks), 0, limits.VM_DISKS_MAX, here, "disks")
    check_each(_check_disk, indexed(block.disks, here))
    names = [ROOT, *(disk.name for disk in block.disks)]
    for index, disk in enumerate(block.disks):
        if disk.name in names[: index + 1]:
            raise Invalid(f"{here}[{index}].name", f"two disks are called {disk.name}")


def _check_disk(disk: DiskBlock, path: str) -> None:
    check_name(disk.name, f"{path}.name")
    _size(disk.size, f"{path}.size")
    if disk.retention is not None:
        duration_ms(disk.retention, f"{path}.retention")


def _size(size: Quantity, path: str) -> int:
    amount = byte_count(size, path)
    between(amount, limits.VM_DISK_BYTES_MIN, limits.BYTES_MAX, path, "bytes")
    return amount


def _check_network(block: NetworkBlock, ports: dict[str, int], path: str) -> None:
    here = f"{path}vm.network"
    if (block.mode == VmNetwork.BRIDGE) != bool(block.bridge):
        raise Invalid(f"{here}.bridge", "belongs to `mode: bridge`, which needs it")
    if block.bridge:
        check_name(block.bridge, f"{here}.bridge")
    if block.mode != VmNetwork.USER:
        for name in ("restrict", "forward"):
            if getattr(block, name):
                raise Invalid(f"{here}.{name}", "belongs to `mode: user`")
    for name, port in block.forward.items():
        if name not in ports:
            raise Invalid(f"{here}.forward.{name:.60}", "no port of this name; add it to `ports`")
        between(port, 1, limits.PORT_MAX, f"{here}.forward.{name}")
    for name in ports:
        if name not in block.forward:
            raise Invalid(f"{path}ports.{name:.60}", "leads nowhere; say which port of the vm with vm.network.forward")


def _check_seed(block: CloudInitBlock | None, path: str) -> None:
    if block is None:
        return
    size = 0
    for name in ("user_data", "meta_data", "network"):
        try:
            _check_tree(getattr(block, name), f"{path}.{name}", limits.VM_SEED_DEPTH_MAX)
            size += len(json.dumps(getattr(block, name)).encode())
        except (TypeError, ValueError):  # bytes and dates of YAML, infinite numbers have no form there
            raise Invalid(f"{path}.{name}", "is made of texts, numbers, lists and mappings") from None
    if size > limits.VM_SEED_BYTES_MAX:
        raise Invalid(path, f"has at most {limits.VM_SEED_BYTES_MAX} bytes in all; this one has {size}")


def _check_tree(value: object, path: str, depth: int) -> None:
    if not depth:
        raise Invalid(path, f"has more than {limits.VM_SEED_DEPTH_MAX} levels")
    name = secret_in(value)
    if name is not None:
        check_name(name, f"{path}.secret")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Invalid(path, "a name here is a text; write it in quotes")
            _check_tree(item, f"{path}.{key:.60}", depth - 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_tree(item, f"{path}[{index}]", depth - 1)
    elif isinstance(value, str):
        _check_text(value, path)


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(path, "this is not text (a lone surrogate)") from None


# --- secrets


def secret_in(value: object) -> str | None:
    """The name of the secret that a value stands for."""
    if isinstance(value, dict) and value.keys() == {"secret"} and isinstance(value["secret"], str):
        return value["secret"]
    return value.secret if isinstance(value, FromSecret) else None


def seed_secrets(block: VmBlock | None) -> dict[str, str]:
    """The secrets of a machine by their fields."""
    found: dict[str, str] = {}

    def walk(value: object, path: str) -> None:
        name = secret_in(value)
        if name is not None:
            found[path] = name
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(item, f"{path}[{index}]")

    if block is not None and block.cloud_init is not None:
        for name in ("user_data", "meta_data", "network"):
            walk(getattr(block.cloud_init, name), f"vm.cloud_init.{name}")
    return found


# --- what a node has to have


def vm_inputs(block: VmBlock | None) -> tuple[Input, ...]:
    """Named files of the project that the machine is made of."""
    sources = [(name, getattr(block, name)) for name in SOURCES] if block is not None else []
    return tuple(Input(name, files=FileSet(source)) for name, source in sources if source.startswith(BLOB))


def vm_needs(block: VmBlock | None) -> tuple[str, ...]:
    """What its node has to offer, by KIND/NAME."""
    if block is None:
        return ()
    sources = [getattr(block, name) for name in SOURCES]
    needs = {f"image/{source}" for source in sources if source and not source.startswith(BLOB)}
    if block.network.bridge:
        needs.add(f"bridge/{block.network.bridge}")
    if block.firmware == Firmware.UEFI:
        needs.add("firmware/uefi")
    if block.accel == Accel.KVM:
        needs.add("accel/kvm")
    return tuple(sorted(needs))


def with_disks(resources: tuple[tuple[str, int], ...], block: VmBlock | None, path: str) -> tuple[tuple[str, int], ...]:
    """The resources of a machine, with the room of its disks. Raises Invalid where that was asked for too small."""
    if block is None:
        return resources
    amounts = dict(resources)
    least = disk_bytes(block)
    if amounts.get("disk", least) < least:
        raise Invalid(f"{path}.disk", f"its disks have {least:,} bytes together; this is less")
    amounts["disk"] = amounts.get("disk", least)
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def disk_bytes(block: VmBlock) -> int:
    sizes = [block.disk_size or 0, *(disk.size for disk in block.disks)]
    return sum(byte_count(size, "vm.disks") for size in sizes)


def root_bytes(block: VmBlock, disk: int) -> int:
    """The size of the disk of its image, where `disk` bytes were asked for; 0: as large as the image."""
    if block.disk_size is not None:
        return byte_count(block.disk_size, "vm.disk_size")
    return max(0, disk - disk_bytes(block)) if disk else 0
