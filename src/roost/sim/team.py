"""All servers of a simulated world: whom agents find, and whom clients ask."""

from collections.abc import Callable
from typing import Any

from roost.core.state import State
from roost.model.errors import NoService
from roost.model.events import Event
from roost.sim.checkers import Checkers
from roost.sim.disk import Disk
from roost.sim.net import Net
from roost.sim.server import Server
from roost.sim.world import Clock, World

HOP_MS = (1, 10)  # a request that is handed on


class Team:
    """One server, or three on one store."""

    def __init__(self, world: World, net: Net, disk: Disk, checkers: Checkers) -> None:
        self._world = world
        count = 3 if disk.shared else 1
        self.servers = [Server(world, net, disk, checkers, f"s{number}") for number in range(count)]
        disk.followers = [server.notified for server in self.servers]

    @property
    def leader(self) -> Server:
        """Whoever leads; the first one if nobody does."""
        return next((server for server in self.servers if server.ready), self.servers[0])

    @property
    def state(self) -> State:
        """The state as the leader has it."""
        return self.leader.state

    @property
    def clock(self) -> Clock:
        """The leader's clock."""
        return self.leader.clock

    @property
    def ready(self) -> bool:
        """Whether somebody decides."""
        return any(server.ready for server in self.servers)

    def find(self, tries: int) -> Server | None:
        """The server that an agent tries next, if it takes agents in."""
        server = self.servers[tries % len(self.servers)]
        return server if server.reachable() else None

    def ask(self, make: Callable[[int], Event], answered: Callable[[Any], None]) -> None:
        """A client asks any server; one that stands by hands it on to whom it believes to lead."""
        server = self._world.one_of(self.servers)
        if server.ready or server.standing is None:
            server.ask(make, answered)
            return
        leader = server.standing.election.leader if server.up and not server.hung else None
        found = [each for each in self.servers if leader is not None and each.name == leader.name and each.up]
        if found:
            self._world.after(self._world.between(*HOP_MS), found[0].ask, make, answered)
        else:
            answered(NoService("no server leads"))
