"""What the keeper knows of other processes: marks in their environment, orphans, and leftovers of an earlier keeper."""

import os
import signal
import sys
import time
from contextlib import suppress

MARK = "ROOST_KEEPER"  # everything a keeper starts carries its directory here
RUN_MARK = "ROOST_RUN"  # ... and a run its id, so that what left its process group can still be found
COMMAND_MARK = "ROOST_COMMAND"  # the id of a command that was started inside a run, beside it
AGENT_MARK = "ROOST_KEEPER_SOCK"  # only the agent, and what the agent starts itself
PORTS_MARK = "ROOST_KEEPER_PORTS"  # for the agent: FIRST-LAST, the ports of its node

LEFTOVER_MS_MAX = 5_000  # KILL works within milliseconds; longer means a process stuck in the kernel
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Become the parent of whatever our children leave behind. False where the system cannot do that."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def children() -> list[int] | None:
    """Our children's pids, or None where the kernel keeps no such list."""
    pid = os.getpid()
    data = read(f"/proc/{pid}/task/{pid}/children")
    return None if data is None else [int(child) for child in data.split()]


def own_size_max_kib() -> int:
    """The most memory we ever had. Not from rusage: there it begins with the size of our parent."""
    _, _, rest = (read("/proc/self/status") or b"").partition(b"VmHWM:")
    return int(rest.split()[0]) if rest else 0


def environment(pid: int) -> bytes:
    """As it was when the program began. Empty for zombies, kernel threads, and processes we may not look into."""
    return read(f"/proc/{pid}/environ") or b""


def find(environ: bytes, name: str) -> str | None:
    block = b"\0" + environ
    start = block.find(b"\0" + name.encode() + b"=")
    if start < 0:
        return None
    start += len(name) + 2
    end = block.find(b"\0", start)
    return os.fsdecode(block[start : end if end >= 0 else None])


def kill_leftovers(directory: str) -> int:
    """KILL everything that an earlier keeper of this directory started; wait until it is gone; return how many."""
    killed: set[int] = set()
    deadline = time.monotonic() + LEFTOVER_MS_MAX / 1000
    while found := started_by(directory):
        for pid in found:
            try:
                kill(pid)
            except PermissionError as error:
                log(f"leftover process {pid}: {error}")
        killed.update(found)
        if time.monotonic() > deadline:
            log(f"processes {sorted(found)} of an earlier keeper cannot be killed")
            break
        time.sleep(0.005)
    return len(killed)


def started_by(directory: str) -> list[int]:
    """Every other process that the keeper of a directory has started: its agent, and all work on its node."""
    own = os.getpid()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != own and find(environment(pid), MARK) == directory]


def kill(pid: int) -> None:
    """With its group, unless that is ours: a keeper may have been started by hand from inside a run."""
    with suppress(ProcessLookupError):
        group = os.getpgid(pid)
        if group not in (0, os.getpgrp()):
            os.killpg(group, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)


def read(path: str) -> bytes | None:
    """A whole file of the kernel; None: it cannot be read, or its process or group ended meanwhile."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return None


def log(message: str) -> None:
    with suppress(OSError):  # its reader is gone
        print(f"keeper: {message}", file=sys.stderr, flush=True)
