"""Disks of machines that no run has had for long are removed."""

import os
from contextlib import suppress

from roost.keeper.machines.disks import LOCK_NAME, DisksRefused, lock, read_list, write_list

#: Every disk stays that long: the next attempt of its instance goes on with it, and waits for at most some minutes.
KEEP_MS_MIN = 15 * 60_000


def used(directory: str) -> None:
    """A run has ended that had these disks: from now on counts how long they are kept."""
    with suppress(OSError):
        os.utime(f"{directory}/{LOCK_NAME}")


def sweep(root: str, now_s: float) -> list[str]:
    """Remove what is due below a directory of machines; a machine that runs has its lock. Returns what was removed.

    Blocks: to remove a large file takes a while.
    """
    removed = []
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        directory = f"{root}/{name}"
        try:
            used_at = os.stat(f"{directory}/{LOCK_NAME}").st_mtime
            if now_s * 1_000 < used_at * 1_000 + KEEP_MS_MIN:
                continue
            fd = lock(directory, 0)
        except (OSError, DisksRefused):
            continue
        with suppress(OSError, DisksRefused):
            removed += _sweep_one(directory, (now_s - used_at) * 1_000)
            os.utime(fd, (used_at, used_at))  # to look is no use
        os.close(fd)
    return removed


def _sweep_one(directory: str, age_ms: float) -> list[str]:
    disks = read_list(directory)
    kept = {name: disk for name, disk in disks.items() if age_ms < int(str(disk.get("retention_ms") or 0))}
    removed = [f"{directory}/{name}.qcow2" for name in disks if name not in kept]
    for path in removed:
        with suppress(FileNotFoundError):
            os.unlink(path)
    if kept:
        if removed:
            write_list(directory, kept)
        return removed
    for name in os.listdir(directory):
        os.unlink(f"{directory}/{name}")
    os.rmdir(directory)
    return removed
