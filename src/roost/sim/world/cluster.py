"""All servers of a simulated world: where agents connect and clients ask."""

from collections.abc import Callable, Sequence
from typing import Any

from roost.core.state.state import State
from roost.model.errors import NoService
from roost.model.events import Event
from roost.model.records.files import FileSet
from roost.sim.checks.safety import Checkers
from roost.sim.world.net import Net
from roost.sim.world.server import Disk, SimulatedServer
from roost.sim.world.world import World

HOP_MS = (1, 10)  # a request that is handed on


class SimulatedCluster:
    def __init__(self, world: World, net: Net, disk: Disk, checkers: Checkers) -> None:
        self._world = world
        self.blobs = disk.blobs
        count = 3 if disk.shared else 1
        self.servers = [SimulatedServer(world, net, disk, checkers, f"s{number}") for number in range(count)]
        self.addresses = tuple(server.name for server in self.servers)
        disk.followers = [server.notified for server in self.servers]

    @property
    def leader(self) -> SimulatedServer:
        """The leader; the first server if there is none."""
        return next((server for server in self.servers if server.ready), self.servers[0])

    @property
    def state(self) -> State:
        return self.leader.state

    @property
    def ready(self) -> bool:
        return any(server.ready for server in self.servers)

    def find(self, address: str) -> SimulatedServer | None:
        return next((item for item in self.servers if item.name == address and item.ready and not item.hung), None)

    def leader_known_at(self, address: str) -> str:
        """The leader as the server at an address knows it; empty if that server leads itself or does not answer."""
        server = next(item for item in self.servers if item.name == address)
        if server.ready or server.leadership is None or not server.up or server.hung:
            return ""
        leader = server.leadership.machine.election.leader
        return leader.name if leader is not None else ""

    def ask(
        self, make: Callable[[int], Event], answered: Callable[[Any], None], sets: Sequence[FileSet] = ()
    ) -> None:  # fmt: skip
        """A client asks any server; a standby forwards it to the leader it knows."""
        server = self._world.one_of(self.servers)
        if server.ready or server.leadership is None:
            server.ask(make, answered, sets)
            return
        leader = self.leader_known_at(server.name)
        found = [server for server in self.servers if server.name == leader and server.up]
        if found:
            self._world.after(self._world.between(*HOP_MS), found[0].ask, make, answered, sets)
        else:
            answered(NoService("no server leads"))
