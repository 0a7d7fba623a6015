"""Ports for servers of our own: never the same twice, also where test processes run side by side."""

import random
import socket

FIRST, LAST = 10_000, 18_000  # below those of `roost up`, of workloads, and those that systems give to clients
APART = 4  # some servers also take the next ports


def free_ports(count: int) -> list[int]:
    """Ports that are unused now, and that no process of this machine is given while this one lives."""
    choices = list(range(FIRST, LAST, APART))
    random.shuffle(choices)
    found: list[int] = []
    while len(found) < count:
        port = choices.pop()
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0roost-lab-{port}")
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
            continue
        claim.detach()  # open until this process ends
        found.append(port)
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
