"""What only the running server knows of nodes and pools: streams, leases, recent failures. It is not stored."""

from copy import copy

from msgspec import Struct
from msgspec.structs import replace

from roost.core.state.allocation import Allocation
from roost.core.state.shared import Shared
from roost.model.protocol import Usage


class NodeLiveness(Struct, gc=False):
    lease_until_ms: int
    connected: bool = False
    silent: bool = False  # connected, but without a heartbeat for a lease, and not lost yet
    generation: int = 0
    orphans: dict[int, Allocation] = {}  # attempts without an instance, which have it until they end
    usage: Usage | None = None

    @property
    def in_touch(self) -> bool:
        return self.connected and not self.silent

    def __copy__(self) -> "NodeLiveness":
        return replace(self, orphans=dict(self.orphans))


class NodeFailures(Struct):
    """Runs on one node that ended badly soon after their start, since the last good run there."""

    ends: list[tuple[int, str]] = []  # when, and of which workload
    times: int = 0  # how often it was marked flaky without a good run in between

    def __copy__(self) -> "NodeFailures":
        return NodeFailures(list(self.ends), self.times)


class Liveness:
    def __init__(self) -> None:
        self.liveness: dict[str, NodeLiveness] = {}
        self.awaited: set[str] = set()  # nodes that have not registered since this server leads; never iterated
        self.returned_ms = 0  # when one of them last registered
        self.lease_ms = 0  # what a heartbeat extends a lease to; within a life of the server it only grows
        self.sent_lease_ms = 0  # what agents are sent: durable, and never more than their heartbeats are counted with
        self.silent_pools: dict[str, int] = {}  # pools of which no node is in touch -> since when
        self.recent_failures: dict[str, dict[str, int]] = {}  # workload -> nodes on which it failed last -> when
        self.node_failures: dict[str, NodeFailures] = {}  # runs that failed, maybe because of the node

    def copy_liveness(self, origin: "Liveness") -> None:
        self.liveness = Shared(origin.liveness, copy)
        self.awaited, self.returned_ms = set(origin.awaited), origin.returned_ms
        self.lease_ms, self.sent_lease_ms = origin.lease_ms, origin.sent_lease_ms
        self.silent_pools = dict(origin.silent_pools)
        self.recent_failures = Shared(origin.recent_failures, dict)
        self.node_failures = Shared(origin.node_failures, copy)
