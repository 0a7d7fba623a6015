"""What an order says about the container of a run, and the file that keeper and shim share about it."""

import json
import os
import re
import signal
from contextlib import suppress

NAME = re.compile(r"roost-[0-9a-f]{12}-[0-9]{1,20}")
FINDINGS_BYTES_MAX = 16 << 10


class ContainerOrder:
    """`create`: the body of the engine's call, without the environment. It has several steps, or is one command."""

    def __init__(self, given: object, *, has_steps: bool) -> None:
        """Raises ValueError."""
        if not isinstance(given, dict):
            raise ValueError("container has to be an object with socket, name and create, or null")
        socket, name, create = given.get("socket"), given.get("name"), given.get("create")
        if not isinstance(socket, str) or socket[:1] != "/" or "\0" in socket:
            raise ValueError("container.socket has to be an absolute path")
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise ValueError("container.name has to be roost-, 12 hexadecimal digits, - and a number")
        if not isinstance(create, dict):
            raise ValueError("container.create has to be an object")
        self.socket = socket
        self.name = name
        self.create = create
        self.has_steps = has_steps
        self.fd = -1

    def limit_pids(self, most: int) -> None:
        host = self.create.get("HostConfig")
        if isinstance(host, dict) and isinstance(host.get("PidsLimit"), int):
            host["PidsLimit"] = min(host["PidsLimit"], most)

    def share(self, argv: list[str], env: dict[str, str], *, first: bool) -> int:
        """A file in memory with what the shim is to do; it writes there what it finds out. Raises OSError."""
        self.close()
        self.fd = os.memfd_create("container", os.MFD_CLOEXEC)
        names = ("socket", "name", "create")
        order = {name: getattr(self, name) for name in names} | {
            "argv": argv, "env": env, "first": first, "steps": self.has_steps,
        }  # fmt: skip
        data = memoryview(json.dumps(order).encode())
        while data:
            data = data[os.write(self.fd, data) :]
        return self.fd

    def findings(self) -> dict[str, object]:
        """What the shim has written; a shim that has not begun has written nothing."""
        if self.fd < 0:
            return {}
        try:
            found = json.loads(os.pread(self.fd, FINDINGS_BYTES_MAX, 0))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and "argv" not in found else {}

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def kill_first_process(findings: dict[str, object]) -> bool:
    """KILL the first process of a container, and with it all others, past its engine. True: it is gone."""
    pid, began = findings.get("pid"), findings.get("began")
    if not isinstance(pid, int) or pid < 2 or not began:
        return False
    if began_at(pid) != began:
        return True
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    return began_at(pid) != began


def began_at(pid: int) -> str:
    """When a process began, in ticks of the kernel: with its number that is the process and no later one."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""
