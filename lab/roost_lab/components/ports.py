"""Ports for servers of our own: never the same twice, also where test processes run side by side."""

import os
import random
import socket

FIRST, LAST = 10_000, 18_000  # below those of `roost up`, of workloads, and those that systems give to clients
APART = 4  # some servers also take the next ports
WORKERS = 10  # each has a share of the range, so that no two test processes choose the same port

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that are unused now and that this process has not given before."""
    share = (LAST - FIRST) // WORKERS
    first = FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS * share
    found: list[int] = []
    choices = [port for port in range(first, first + share, APART) if port not in _given]
    if len(choices) < share // APART // 2:
        _given.clear()  # what had them first has ended long ago, or still listens
    random.shuffle(choices)
    while len(found) < count:
        port = choices.pop()
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    _given.update(found)
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
