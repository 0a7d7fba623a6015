"""What a run of one project tries against everything else of its node. It runs inside, with the machine's Python.

Prints what it got as JSON: {what it tried: what came of it}. Nothing is expected to succeed.
"""

import ctypes
import json
import os
import signal
import socket
from contextlib import suppress

BYTES_MAX = 1 << 20


def main() -> None:
    given = json.loads(os.environ["TARGETS"])
    got: dict[str, object] = {}
    for path in given["files"]:
        with suppress(OSError), open(path, "rb") as file:
            file.read(1)
            got[f"read {path}"] = True
    for path in given["folders"]:
        with suppress(OSError):
            names = {*os.listdir(path)} - {*given["may_see"], os.environ["ROOST_ATTEMPT_TOKEN"]}
            if names:
                got[f"list {path}"] = sorted(names)
        with suppress(OSError), open(f"{path}/{given['leaves']}", "x"):
            pass  # may be its own view of that directory; the test looks from outside
    for path in given["sockets"]:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as link:
                link.connect(path)
                got[f"connect {path}"] = True
    for pid in given["pids"]:
        _try_process(pid, got)
    got |= {f"canary in {path}": True for path in _visible_processes() if _has(path, given["canary"].encode())}
    got |= {f"open file {fd}": os.readlink(f"/proc/self/fd/{fd}") for fd in _foreign_files()}
    print(json.dumps(got))


def _try_process(pid: int, got: dict[str, object]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for number in (0, signal.SIGCONT):
        with suppress(OSError):
            os.kill(pid, number)
            got[f"signal {number} to {pid}"] = True
    with suppress(OSError):
        os.close(os.pidfd_open(pid))
        got[f"pidfd of {pid}"] = True
    if libc.ptrace(0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
        got[f"ptrace {pid}"] = True
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_void_p * 2)(0x400000, 8)
    if libc.process_vm_readv(pid, local, 1, remote, 1, 0) >= 0:
        got[f"memory of {pid}"] = True
    for name in ("environ", "mem", "maps", "root/etc", "cwd", "fd", "cmdline"):
        if os.path.exists(f"/proc/{pid}/{name}"):
            got[f"/proc/{pid}/{name}"] = True


def _visible_processes() -> list[str]:
    """Environment and arguments of every process in sight but this one; also what is below its own root."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid():
            found += [f"/proc/{pid}/environ", f"/proc/{pid}/cmdline"]
    return found


def _has(path: str, canary: bytes) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return canary in file.read(BYTES_MAX)
    return False


def _foreign_files() -> list[int]:
    """Open files beside the three of every program, and the one that lists them."""
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")]


if __name__ == "__main__":
    main()
