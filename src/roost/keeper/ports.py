"""Ports that a node gives to workloads: a part of the machine's range that no other node of the machine has.

Several nodes may share a machine, also nodes of different servers. Each claims blocks of ports by binding an abstract
Unix socket for each of them: the kernel keeps these names per network namespace, as it does ports, and releases them
when the keeper ends.
"""

import socket

FIRST, LAST = 20_000, 31_999  # below the ports that systems give to clients
BLOCK = 125  # ports of a claim: 64 nodes of one machine, and as many again, have more than one run may ask for
PARTS = 8  # of what is free, so that nodes of other servers also have their part: some thirty of them
NAME = "\0roost-ports-{first}"
LISTEN = "0A"  # the state in /proc/net/tcp


class PortRange:
    """The ports of this node, claimed for as long as this object is open."""

    def __init__(self, first: int, last: int, sockets: "list[socket.socket]") -> None:
        self.first = first
        self.last = last
        self._sockets = sockets

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def close(self) -> None:
        for claim in self._sockets:
            claim.close()


def claim(nodes: int) -> "PortRange | None":
    """The part of one of so many nodes, out of what is free: the more nodes there are, the less; None for the last."""
    busy = {block_of(port) for port in listening()}
    every = range(FIRST, LAST + 1, BLOCK)
    free = [first for first in every if first not in busy and _is_free(first)]
    size = max(1, len(free) // (PARTS * nodes))
    while size:
        for start in range(0, len(every) - size + 1, size):
            blocks = list(every[start : start + size])
            sockets = _bind(blocks) if set(free).issuperset(blocks) else []
            if sockets:
                return PortRange(blocks[0], blocks[-1] + BLOCK - 1, sockets)
        size //= 2
    return None


def block_of(port: int) -> int:
    """The first port of its block."""
    return port - (port - FIRST) % BLOCK


def listening(proc: str = "/proc") -> set[int]:
    """The TCP ports of our network namespace on which a process listens."""
    ports = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"{proc}/net/{table}", encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:  # IPv6 is switched off, or there is no /proc
            continue
        ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTEN}
    return ports


def _is_free(first: int) -> bool:
    claims = _bind([first])
    for claim in claims:
        claim.close()
    return bool(claims)


def _bind(blocks: list[int]) -> "list[socket.socket]":
    """A claim on each of them, or none at all."""
    sockets = []
    try:
        for first in blocks:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            sockets.append(claim)
            claim.bind(NAME.format(first=first))
    except OSError:  # another node has it
        for claim in sockets:
            claim.close()
        return []
    return sockets
