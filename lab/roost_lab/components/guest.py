"""A tiny guest for virtual machines: Debian's kernel for clouds, and an initrd of busybox that runs a script.

The script is a word of the kernel's command line (`Guest.cmdline`). Its output goes to the serial console. When it ends
the machine powers off, as it does when its power button is pressed. `tools/components.py` installs what is needed.
"""

import base64
import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from roost_lab.components import Missing

QEMU = "qemu-system-x86_64"
MEMORY = 96 << 20  # bytes; below 72 MiB this kernel does not boot
KERNELS = Path("/var/cache/roost-guest")  # where tools/components.py unpacks the kernel
MODULES = (
    "virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk", "failover",
    "net_failover", "virtio_net", "evdev", "button", "pvpanic", "pvpanic-mmio", "cdrom", "isofs",
)  # fmt: skip
SCRIPT_MAX = 1_200  # characters: a command line has 2,047, and base64 takes a third more

#: `deaf`: what a script calls for a guest that does not listen to its power button.
INIT = r"""#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in MODULES; do insmod /modules/$module.ko; done
for event in /dev/input/event*; do (head -c 1 $event >/dev/null && poweroff -f) & done
deaf() { killall head; }
stty -F /dev/ttyS0 raw -echo 2>/dev/null
for word in $(cat /proc/cmdline); do
    case $word in script=*) echo ${word#script=} | base64 -d > /script;; esac
done
[ ! -e /script ] || . /script
poweroff -f
"""


class Guest(NamedTuple):
    program: str  # QEMU
    kernel: str
    initrd: str

    def cmdline(self, script: str) -> str:
        assert len(script) <= SCRIPT_MAX
        return f"console=ttyS0 quiet panic=-1 script={base64.b64encode(script.encode()).decode()}"


@functools.cache
def guest() -> Guest:
    """The same files for all processes of this machine."""
    program, busybox = shutil.which(QEMU), shutil.which("busybox")
    kernels = sorted(KERNELS.glob("boot/vmlinuz-*"))
    if program is None or busybox is None or not kernels:
        raise Missing("QEMU, busybox and a kernel for guests have to be installed; run `python tools/components.py`")
    files = {"bin/busybox": Path(busybox).read_bytes(), "init": init()}
    for module in MODULES:
        (path,) = KERNELS.glob(f"lib/modules/*/kernel/**/{module}.ko")
        files[f"modules/{module}.ko"] = path.read_bytes()
    files["bin/sh"] = b"/bin/busybox"
    archive = cpio(files)
    name = f"roost-guest-{os.geteuid()}-{hashlib.sha256(archive).hexdigest()[:16]}.img"
    path = Path(tempfile.gettempdir()) / name
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(archive)
        draft.replace(path)
    return Guest(program, str(kernels[-1]), str(path))


def init() -> bytes:
    return INIT.replace("MODULES", " ".join(MODULES)).encode()


def cpio(files: dict[str, bytes]) -> bytes:
    """An archive as kernels take it (newc, not compressed: it would have to be unpacked by a slow processor)."""
    folders = ("bin", "modules", "dev", "proc", "sys", "mnt", "tmp")
    entries = [(name, 0o40755, b"") for name in folders]
    entries += [(name, 0o120777 if name == "bin/sh" else 0o100755, data) for name, data in files.items()]
    entries.append(("TRAILER!!!", 0, b""))
    archive = b""
    for number, (name, mode, data) in enumerate(entries, 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        archive += head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
    return archive
