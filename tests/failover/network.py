"""Hosts on a network of the tests' own: namespaces joined by a bridge, each of which can be cut off and joined again.

The bridge is in a namespace as well, so that neither the rules nor the bridges of this machine have a say. This process
stays where it is, with one address on that network: it sees what a client outside sees.
"""

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple, Self

COMMAND_LIMIT_S = 30
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # their bits: to join namespaces, and to make them
PROGRAMS = ("ip", "iptables", "nsenter")
OURS = 254  # this process's number on the network; hosts have 1, 2, 3 ...
TRIES = 50  # to find a range that no server uses


def missing() -> str:
    """What there has to be for a network of our own and is not; "" if nothing is missing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    for name, bit in CAPABILITIES.items():
        if not int(effective.split()[1], 16) >> bit & 1:
            return f"network namespaces need {name}"
    programs = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"these programs are not installed: {', '.join(programs)}" if programs else ""


class Host(NamedTuple):
    """A namespace with an address. Whatever is run with the prefix runs there."""

    name: str
    address: str
    prefix: list[str]
    port: str  # where its cable ends, in the hub


class Network:
    """Some hosts, for as long as the block lasts."""

    def __init__(self, hosts: int) -> None:
        mark = os.urandom(3).hex()  # an interface's name has 15 letters at most
        base = _free_range()
        self._hub, self._ours = f"roost-{mark}-hub", f"rt-{mark}"
        self.address = f"{base}.{OURS}"
        self.hosts = [self._host(f"roost-{mark}-{number}", f"{base}.{number}") for number in range(1, hosts + 1)]

    def _host(self, name: str, address: str) -> Host:
        # Not `ip netns exec`: it puts another /sys over this one, and agents look there for control groups.
        return Host(name, address, ["nsenter", f"--net=/run/netns/{name}"], f"p{address.rpartition('.')[2]}")

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        _run("ip", "netns", "add", self._hub)
        _run("ip", "-n", self._hub, "link", "add", "hub", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "hub", "up")
        for host in self.hosts:
            _run("ip", "netns", "add", host.name)
            _run("ip", "-n", host.name, "link", "set", "lo", "up")
            peer = ("peer", "name", "eth0", "netns", host.name)
            _run("ip", "-n", self._hub, "link", "add", host.port, "type", "veth", *peer)
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _run("ip", "-n", host.name, "link", "set", "eth0", "up")
            self._plug_in(host.port)
        _run("ip", "link", "add", self._ours, "type", "veth", "peer", "name", "outside", "netns", self._hub)
        _run("ip", "addr", "add", f"{self.address}/24", "dev", self._ours)
        _run("ip", "link", "set", self._ours, "up")
        self._plug_in("outside")

    def _plug_in(self, port: str) -> None:
        _run("ip", "-n", self._hub, "link", "set", port, "master", "hub", "up")

    def __exit__(self, *_: object) -> None:
        """Removed is what is there, in whatever state it is; what cannot be removed is reported after all was tried."""
        failures = []
        if Path("/sys/class/net", self._ours).exists():
            failures.append(_try("ip", "link", "del", self._ours))
        for name in (*(host.name for host in self.hosts), self._hub):
            if Path("/run/netns", name).exists():
                failures.append(_try("ip", "netns", "del", name))
        assert not any(failures), f"not removed: {[failure for failure in failures if failure]}"

    def unplug(self, host: Host) -> None:
        """Pull its cable: the host itself knows that it is cut off. What is on it still reaches itself."""
        _run("ip", "-n", self._hub, "link", "set", host.port, "down")

    def plug_in(self, host: Host) -> None:
        self._plug_in(host.port)

    def silence(self, host: Host, other: str = "") -> None:
        """Whatever goes in or out is lost without a word, as in a network that is broken somewhere else.

        With another address: only what goes between the two.
        """
        for chain, side, end in (("INPUT", "-i", "-s"), ("OUTPUT", "-o", "-d")):
            between = (end, other) if other else ()
            _run(*host.prefix, "iptables", "-w", "-A", chain, side, "eth0", *between, "-j", "DROP")

    def unsilence(self, host: Host) -> None:
        for chain in ("INPUT", "OUTPUT"):
            _run(*host.prefix, "iptables", "-w", "-F", chain)


def _free_range() -> str:
    """The first three numbers of private addresses that nothing here uses: two runs at once do not meet."""
    used = _run("ip", "-4", "-o", "addr") + _run("ip", "-4", "route")
    for _ in range(TRIES):
        base = f"10.{random.randrange(200, 250)}.{random.randrange(256)}"
        if f" {base}." not in used:
            return base
    raise AssertionError("there is no private range of addresses that is free")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def _try(*command: str) -> str:
    """Why it failed; "" if it did not."""
    try:
        _run(*command)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""
