"""What is known of nodes and pools only while the server lives: streams, leases, recent failures."""

from copy import copy

from roost.core.state.allocation import Allocation
from roost.core.state.shared import Shared
from roost.model.protocol import Usage


class NodeLiveness:
    """What is known of a node only while the server lives: its stream, its lease, its measured use."""

    __slots__ = ("connected", "generation", "orphans", "lease_until_ms", "silent", "usage")

    def __init__(self, lease_until_ms: int) -> None:
        self.connected = False
        self.silent = False  # its stream is there, but nothing was heard for a lease, and it was not given up
        self.lease_until_ms = lease_until_ms
        self.generation = 0
        self.orphans: dict[int, Allocation] = {}  # attempts that were given away and still take room until they end
        self.usage: Usage | None = None

    @property
    def in_touch(self) -> bool:
        """Whether orders can be sent to it."""
        return self.connected and not self.silent

    def __copy__(self) -> "NodeLiveness":
        made = NodeLiveness(self.lease_until_ms)
        made.connected, made.silent, made.generation = self.connected, self.silent, self.generation
        made.orphans, made.usage = dict(self.orphans), self.usage
        return made


class NodeFailures:
    """Runs on one node that ended badly soon after their start, since one went well there."""

    __slots__ = ("ends", "times")

    def __init__(self) -> None:
        self.ends: list[tuple[int, str]] = []  # when, and of which workload
        self.times = 0  # how often it was called flaky without a good run in between

    def __copy__(self) -> "NodeFailures":
        made = NodeFailures()
        made.ends, made.times = list(self.ends), self.times
        return made


class Liveness:
    """Nodes by name, as they are heard of."""

    def __init__(self) -> None:
        self.liveness: dict[str, NodeLiveness] = {}
        self.silent_pools: dict[str, int] = {}  # pools of which no node is in touch -> since when
        self.recent_failures: dict[str, dict[str, int]] = {}  # workload -> nodes on which it failed last -> when
        self.node_failures: dict[str, NodeFailures] = {}  # runs that failed, maybe because of the node

    def copy_liveness(self, origin: "Liveness") -> None:
        """Begin as another."""
        self.liveness = Shared(origin.liveness, copy)
        self.silent_pools = dict(origin.silent_pools)
        self.recent_failures = Shared(origin.recent_failures, dict)
        self.node_failures = Shared(origin.node_failures, copy)
