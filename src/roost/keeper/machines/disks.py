"""The disks of a machine: files in its directory, which one machine at a time may have."""

import fcntl
import os
import time

from roost.keeper.machines.order import MachineOrder

LOCK_NAME = "lock"
LOCK_S_MAX = 5.0  # a QEMU that was killed is gone within milliseconds; longer means that it runs
LOCK_PAUSE_S = 0.02


class DisksRefused(Exception):
    """The machine cannot have its disks; the message says why."""


def lock(directory: str) -> int:
    """Take the directory for one machine. The descriptor is inherited by QEMU: the lock ends with the last of us."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(f"{directory}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DisksRefused(f"disks {directory}: {error.strerror}") from error
    deadline = time.monotonic() + LOCK_S_MAX
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                owner = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise DisksRefused(f"disks {directory}: another machine has them (process {owner})") from error
        time.sleep(LOCK_PAUSE_S)
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def prepare(order: MachineOrder) -> list[dict[str, object]]:
    if order.disks:
        raise DisksRefused("disks are not there yet")
    return []
