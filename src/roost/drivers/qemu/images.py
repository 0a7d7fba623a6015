"""Files that virtual machines are made of: what each is by its first bytes, and whether a machine here can use it."""

import os
import stat
from typing import NamedTuple

from roost.drivers.container.images import ImageUnavailable
from roost.model.records.files import InputProblem
from roost.model.spec.files import BLOB
from roost.model.spec.units import show_size

HEAD_BYTES = 4_096
QCOW2, RAW, KERNEL = "qcow2", "raw", "kernel"
#: Disks of others, which QEMU would take for the bytes of a raw disk.
FOREIGN = ((b"KDMV", "VMDK"), (b"vhdxfile", "VHDX"), (b"conectix", "VHD"), (b"QED\0", "QED"), (b"<<< Oracle", "VDI"))
EXTERNAL_DATA = 1 << 2  # of the incompatible features of qcow2
ELF_MACHINES = {62: "amd64", 183: "arm64", 243: "riscv64"}


class ImageHead(NamedTuple):
    form: str
    size: int  # of the disk, in bytes
    arch: str = ""  # of a kernel; empty: it does not say
    leads_outside: bool = False  # it names other files of its machine


def is_file(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def read_head(path: str) -> ImageHead:
    """Raises OSError, and ValueError with a sentence for what no machine can be made of."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        head = file.read(HEAD_BYTES)
    return head_of(head, found.st_size)


def head_of(head: bytes, size: int) -> ImageHead:
    if head[:4] == b"QFI\xfb":
        return _qcow2(head)
    foreign = next((name for sign, name in FOREIGN if head.startswith(sign)), "")
    if foreign:
        raise ValueError(f"it is a disk in the format {foreign}; convert it with `qemu-img convert -O qcow2`")
    if not size:
        raise ValueError("it is empty")
    if head[0x202:0x206] == b"HdrS":
        return ImageHead(KERNEL, size, "amd64")
    if head[0x38:0x3C] == b"ARM\x64":
        return ImageHead(KERNEL, size, "arm64")
    if head[:4] == b"\x7fELF":
        return ImageHead(KERNEL, size, ELF_MACHINES.get(int.from_bytes(head[18:20], "little"), "another"))
    return ImageHead(RAW, size)


def _qcow2(head: bytes) -> ImageHead:
    version = _number(head, 4, 4)
    if version not in (2, 3) or len(head) < 104:
        raise ValueError("it is a damaged qcow2 disk, or one of an unknown version")
    has_data_file = version == 3 and bool(_number(head, 72, 8) & EXTERNAL_DATA)
    return ImageHead(QCOW2, _number(head, 24, 8), leads_outside=bool(_number(head, 8, 8)) or has_data_file)


def _number(head: bytes, at: int, size: int) -> int:
    return int.from_bytes(head[at : at + size], "big")


def check_source(name: str, field: str, path: str, arch: str, size: int, room: int) -> None:
    """Raises ImageUnavailable if the file of a field of a document cannot be used for what it is meant for.

    `size` is that of the disk that is to be made of it; 0: as large. `room`: the bytes of the node's whole disk.
    """
    try:
        head = read_head(path)
    except ValueError as error:
        raise _unusable(name, str(error)) from None
    except OSError as error:
        raise ImageUnavailable(name, InputProblem.IMAGE_GONE, error.strerror or str(error) if path else "") from None
    if field == "kernel" and head.arch and head.arch != arch:
        detail = f"{head.arch}, not {arch}"
        raise ImageUnavailable(name, InputProblem.WRONG_ARCHITECTURE, detail, is_final=_is_named(name))
    if field == "kernel" and head.form == QCOW2:
        raise _unusable(name, "it is a disk, not a kernel; give it as `image`")
    if field == "image" and head.form == KERNEL:
        raise _unusable(name, "it is a kernel, not a disk; give it as `kernel`")
    if field == "image" and 0 < size < head.size:
        raise _unusable(name, f"its disk has {show_size(head.size)}, more than the machine's {show_size(size)}")
    if field == "image" and head.size > room:
        detail = f"its disk has {show_size(head.size)}, and that of the node {show_size(room)}"
        raise ImageUnavailable(name, InputProblem.IMAGE_UNUSABLE, detail)


def _unusable(name: str, detail: str) -> ImageUnavailable:
    return ImageUnavailable(name, InputProblem.IMAGE_UNUSABLE, detail, is_final=_is_named(name))


def _is_named(name: str) -> bool:
    """Whether it is of the project: an image of this name on another node may be another file."""
    return name.startswith(BLOB)


def sole_file(name: str, folder: str) -> str:
    """The file of a named input, which has to be one. A link could lead to any file of the node, so it is none."""
    found = sorted(os.scandir(folder), key=lambda entry: entry.name) if os.path.isdir(folder) else []
    if len(found) != 1 or not found[0].is_file(follow_symlinks=False):
        what = f"it has {len(found)} files" if len(found) != 1 else f"{found[0].name:.80} is no regular file"
        raise _unusable(name, f"an image is one file; {what}")
    path = found[0].path
    try:
        leads_outside = read_head(path).leads_outside
    except (OSError, ValueError):
        leads_outside = False  # the check that follows names the problem
    if leads_outside:
        raise _unusable(name, "it names other files; make it whole with `qemu-img convert -O qcow2`")
    return path
