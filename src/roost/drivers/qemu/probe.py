"""The QEMU of this machine: found, asked for its release, and tried out with KVM. Calls block."""

import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress

import msgspec

from roost.drivers.qemu.host import MachineHost, QemuProgram
from roost.drivers.qemu.images import is_file
from roost.keeper import cgroup

AUTO, NONE = "auto", "none"
PROGRAMS = {"amd64": "qemu-system-x86_64"}  # by the architecture of the node: machines here are made for it
IMAGE_PROGRAM = "qemu-img"  # which makes disks
ANSWER_S_MAX = 10.0  # for its release, on a busy machine
KVM = "/dev/kvm"
#: A guest that works needs a tenth of this. One that does not may crawl for minutes in an emulator of the kernel.
TRIAL_S_MAX = 5.0
TRIAL_DONE = 33  # QEMU's exit code when a guest writes 0x10 to its port
#: mov dx, 0x501; mov al, 0x10; out dx, al; then it halts.
BOOT_SECTOR = bytes.fromhex("ba0105b010eef4ebfd").ljust(510, b"\0") + b"\x55\xaa"
TRIAL_DISK_BYTES = 1 << 20  # less is no disk for the BIOS
FIRMWARE = ("/usr/share/ovmf/OVMF.fd", "/usr/share/qemu/OVMF.fd", "/usr/share/edk2/x64/OVMF.fd")
NET_ADMIN = 1 << 12
BRIDGE = "/sys/class/net/{}/bridge"
_VERSION = re.compile(r"version (\d+(?:\.\d+)*)")


class ProbeNote(msgspec.Struct, frozen=True):
    state: list[str]
    qemu: QemuProgram


def find_qemu(wanted: str, arch: str, note: str = "") -> QemuProgram | None:
    """`wanted`: a program, `auto` or `none`. None: machines cannot run here.

    `note`: a file that keeps what was found, until the machine starts again or one of the parts is another.
    """
    program = PROGRAMS.get(arch, "")
    if wanted == NONE or not program:
        return None
    found = shutil.which(program if wanted == AUTO else wanted)
    if found is None or shutil.which(IMAGE_PROGRAM) is None:
        return None
    path, firmware = os.path.realpath(found), next(filter(is_file, FIRMWARE), "")
    state = _state(path, firmware)
    known = _read(note)
    if known is not None and known.state == state:
        return known.qemu
    version = _version(path)
    if not version:
        return None
    qemu = QemuProgram(path, version, runs_kvm(path), firmware)
    _write(note, ProbeNote(state, qemu))
    return qemu


def _state(program: str, firmware: str) -> list[str]:
    """What an answer depends on."""
    found = os.stat(program)
    boot = cgroup.read("/proc/sys/kernel/random/boot_id").strip()
    return [boot, program, str(found.st_mtime_ns), str(found.st_size), firmware, str(os.access(KVM, os.R_OK | os.W_OK))]


def _read(note: str) -> ProbeNote | None:
    with suppress(OSError, msgspec.MsgspecError):
        with open(note, "rb") as file:
            return msgspec.json.decode(file.read(), type=ProbeNote)
    return None


def _write(note: str, known: ProbeNote) -> None:
    if not note:
        return
    with suppress(OSError):  # the next agent asks again
        with open(f"{note}.new", "wb") as file:
            file.write(msgspec.json.encode(known))
        os.replace(f"{note}.new", note)


def look_again(host: MachineHost, qemu: QemuProgram | None) -> MachineHost:
    """With what is there now: images and bridges come and go."""
    images = {name: path for name, path in host.images.items() if is_file(path)}
    bridges = {name: interface for name, interface in host.bridges.items() if is_bridge(interface)}
    is_there = qemu is not None and os.access(qemu.program, os.X_OK)
    return MachineHost(host.directory, images, bridges, qemu if is_there else None)


def is_bridge(interface: str) -> bool:
    return os.path.isdir(BRIDGE.format(interface))


def joins_bridges() -> bool:
    """Whether we may add interfaces to a bridge: root, or CAP_NET_ADMIN."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        fields = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    return bool(int(fields["CapEff"], 16) & NET_ADMIN)


def runs_kvm(program: str) -> bool:
    """Whether a guest runs with KVM and this processor, and not only the device is there."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        return False
    with tempfile.NamedTemporaryFile(prefix="roost-kvm-") as disk:
        disk.write(BOOT_SECTOR)
        disk.truncate(TRIAL_DISK_BYTES)
        argv = [
            program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35",
            "-accel", "kvm", "-cpu", "host", "-m", "16", "-device", "isa-debug-exit,iobase=0x501,iosize=2",
            "-drive", f"if=virtio,format=raw,readonly=on,file={disk.name}",
        ]  # fmt: skip
        argv = ["/bin/sh", "-c", 'ulimit -c 0; exec "$@"', "sh", *argv]  # where it fails, it aborts
        return _run(argv, TRIAL_S_MAX)[0] == TRIAL_DONE


def _version(program: str) -> str:
    found = _VERSION.search(_run([program, "-version"], ANSWER_S_MAX)[1])
    return found.group(1) if found else ""


def _run(argv: list[str], seconds: float) -> tuple[int, str]:
    """Its code and output; -1 if it could not be run, or not in time."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout.decode(errors="replace")
    return -1, ""
