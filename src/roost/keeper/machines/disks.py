"""The disks of a machine: files in its directory, which one machine at a time may have.

A disk of an image is what differs from it, in QEMU's own format: the image itself is only read, by many machines. A
disk stays for the attempts that follow. `disks.json` says of which image each is, and how long it is kept.
"""

import fcntl
import os
import time

from roost.keeper.machines.order import MachineOrder

LOCK_NAME, LIST_NAME = "lock", "disks.json"
LOCK_S_MAX = 5.0  # a QEMU that was killed is gone within milliseconds; longer means that it runs
LOCK_PAUSE_S = 0.02
TOOL_S_MAX = 60.0  # `qemu-img` writes some KiB, whatever the size of the disk
QCOW2 = b"QFI\xfb"
SIZE_AT = 24  # where such a file has the size of its disk


class DisksRefused(Exception):
    """The machine cannot have its disks; the message says why."""


def lock(directory: str, seconds: float = LOCK_S_MAX) -> int:
    """Take the directory for one machine. The descriptor is inherited by QEMU: the lock ends with the last of us."""
    path = f"{directory}/{LOCK_NAME}"
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DisksRefused(f"disks {directory}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(fd)):
                break
        except OSError as error:
            if time.monotonic() > deadline:
                owner = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise DisksRefused(f"disks {directory}: another machine has them (process {owner})") from error
        os.close(fd)  # it is another's, or its directory was just removed
        time.sleep(LOCK_PAUSE_S)
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def prepare(order: MachineOrder) -> bool:
    """Make what is missing. True: no disk was there before. Raises DisksRefused."""
    are_new = True
    if not order.disks:
        return are_new
    known = read_list(order.dir)
    for disk in order.disks:
        name, base, size = str(disk["name"]), str(disk.get("base") or ""), int(str(disk.get("size") or 0))
        try:
            identity = identity_of(base, str(disk.get("content") or "")) if base else ""
            made = known.get(name)
            if made is not None and made["identity"] != identity:
                if made["base"] == base and not disk.get("content"):
                    raise DisksRefused(f"disk {name}: its image {base} has changed since the disk was made of it")
                made = None  # of another image: another disk
            path = f"{order.dir}/{name}.qcow2"
            if made is None or not os.path.exists(path):
                create(order.program, path, base, size)
            else:
                are_new = False
                if size > virtual_size(path):
                    if made["base"] != base:  # the file would be opened where it was
                        tool(order.program, "rebase", "-u", "-f", "qcow2", "-F", form_of(base), "-b", base, path)
                    tool(order.program, "resize", "-f", "qcow2", path, str(size))
        except OSError as error:
            raise DisksRefused(f"disk {name}: {error.filename or base}: {error.strerror}") from error
        known[name] = {"base": base, "identity": identity, "retention_ms": disk.get("retention_ms", 0)}
    write_list(order.dir, known)
    return are_new


def identity_of(base: str, content: str) -> str:
    """What tells an image from another under the same name."""
    if content:
        return content
    found = os.stat(base)
    return f"{found.st_size}-{found.st_mtime_ns}"


def create(program: str, path: str, base: str, size: int) -> None:
    if base and 0 < size < virtual_size(base):
        raise DisksRefused(f"disk {os.path.basename(path)}: its image needs {virtual_size(base)} bytes, not {size}")
    image = ["-b", base, "-F", form_of(base)] if base else []
    draft = f"{path}.new"
    tool(program, "create", "-q", "-f", "qcow2", *image, draft, *([str(size)] if size else []))
    os.rename(draft, path)


def form_of(path: str) -> str:
    with open(path, "rb") as file:
        return "qcow2" if file.read(len(QCOW2)) == QCOW2 else "raw"


def virtual_size(path: str) -> int:
    if form_of(path) == "raw":
        return os.stat(path).st_size
    with open(path, "rb") as file:
        return int.from_bytes(file.read(SIZE_AT + 8)[SIZE_AT:], "big")


def tool(program: str, *arguments: str) -> None:
    """`qemu-img`, beside QEMU or in the PATH."""
    import subprocess  # a machine without new disks starts faster

    beside = os.path.join(os.path.dirname(program), "qemu-img")
    command = [beside if os.path.exists(beside) else "qemu-img", *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DisksRefused(f"qemu-img {arguments[0]}: {error}") from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise DisksRefused(message or f"qemu-img {arguments[0]} ended with code {done.returncode}")


# --- how long they stay


def read_list(directory: str) -> dict[str, dict[str, object]]:
    import json  # a machine without disks starts faster

    try:
        with open(f"{directory}/{LIST_NAME}", encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DisksRefused(f"disks {directory}: {LIST_NAME} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


def write_list(directory: str, disks: dict[str, dict[str, object]]) -> None:
    import json

    draft = f"{directory}/{LIST_NAME}.new"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(disks, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, f"{directory}/{LIST_NAME}")
    except OSError as error:
        raise DisksRefused(f"disks {directory}: {error.strerror}") from error
