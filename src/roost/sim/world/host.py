"""Hosts: a clock, a keeper that lives as long as the host, and agents that come and go, hang and wake."""

from typing import NamedTuple

from roost.model.records.node import Facts
from roost.sim.checks.oracle import Oracle
from roost.sim.checks.safety import Checkers
from roost.sim.world.agent import SimulatedAgent
from roost.sim.world.cluster import SimulatedCluster
from roost.sim.world.engine import SimulatedEngine
from roost.sim.world.keeper import SimulatedKeeper
from roost.sim.world.logs import LogFiles
from roost.sim.world.net import Net
from roost.sim.world.world import SimulatedClock, World

GRACE_MS = 500  # for runs when their host is shut down
FAREWELL_MS = 2_000  # an agent that was asked to end is gone by then, heard or not
RESTART_MS = (200, 1_200)  # until the keeper has a new agent
UPTIME_MS_MAX = 1_000_000_000  # what a host's clock may show as the world begins
BOOT_MS = 1_000  # what it shows when the keeper starts after a reboot
HANG_MS_MAX = 10_000  # an agent silent for longer is killed by its keeper


class Site(NamedTuple):
    world: World
    net: Net
    door: SimulatedCluster
    witness: Oracle
    checkers: Checkers


class SimulatedHost:
    """A machine. Its identity survives reboots; its clock and its keeper start anew."""

    def __init__(self, site: Site, name: str, facts: Facts, drift_ppm: int, node: str = "") -> None:
        self.world, self.net, self.door, self._witness, self.checkers = site
        self.name = name
        self.node = node or name  # what it calls itself; two machines may use one name
        self._boots = 0
        self.facts = facts
        self.up = False
        self._drift_ppm = drift_ppm
        self.clock = SimulatedClock(site.world, site.world.between(1, UPTIME_MS_MAX), drift_ppm)
        self.files = LogFiles(site.world, site.checkers.logs)
        self.engine: SimulatedEngine | None = None
        self.keeper = SimulatedKeeper(site.world, name, self.clock, site.witness, self.files)
        self.agent: SimulatedAgent | None = None

    @property
    def identity(self) -> str:
        """MACHINE/LIFE: the machine survives reboots, its life does not."""
        return f"{self.name}/{self._boots}"

    def boot(self) -> None:
        if self.up:
            return
        self.world.tell(self.name, "boots")
        self.up = True
        self._boots += 1
        if self.world.now:
            self.clock = SimulatedClock(self.world, BOOT_MS - self.world.now, self._drift_ppm)
        self.keeper = SimulatedKeeper(self.world, self.name, self.clock, self._witness, self.files, self.engine)
        self._start_agent(self.keeper)

    def crash(self) -> None:
        if not self.up:
            return
        self.world.tell(self.name, "loses power")
        self._go_down(quietly=True)

    def kill_agent(self) -> None:
        if self.agent is not None and self.agent.alive:
            self.world.tell(self.name, "agent killed")
            self.agent.die()
            self.world.after(self.world.between(*RESTART_MS), self._start_agent, self.keeper)

    def hang_agent(self, for_ms: int) -> None:
        """The agent stops for a while; the keeper replaces one that is silent for too long."""
        agent = self.agent
        if agent is None or not agent.alive or agent.hung:
            return
        self.world.tell(self.name, f"agent hangs for {for_ms} ms")
        agent.hung = True
        if for_ms > HANG_MS_MAX:
            self.world.after(HANG_MS_MAX, self._replace_hung, agent)
        else:
            self.world.after(for_ms, agent.wake)

    def leave(self) -> None:
        if self.agent is not None and self.agent.alive and not self.agent.hung:
            self.world.tell(self.name, "is shut down in order")
            self.keeper.stop_all(GRACE_MS)
            self._wait_for_idle(self.keeper)

    def _wait_for_idle(self, keeper: SimulatedKeeper) -> None:
        """Runs end first, while the agent can report them; then the agent, if it still lives."""
        if keeper is self.keeper and keeper.alive:
            if not keeper.is_idle():
                self.world.after(20, self._wait_for_idle, keeper)
            elif self.agent is not None and self.agent.alive:
                self.agent.leave()
                self.world.after(FAREWELL_MS, self.leave_now, keeper)
            else:
                self.leave_now(keeper)

    def leave_now(self, keeper: SimulatedKeeper) -> None:
        if self.up and keeper is self.keeper:
            self._go_down(quietly=False)

    def _go_down(self, *, quietly: bool) -> None:
        self.up = False
        if self.agent is not None:
            self.agent.die(quietly=quietly)
        self.agent = None
        self.keeper.die()
        if self.engine is not None:
            self.engine.lose_power()
        self.files.stopped(cut=quietly)

    def _replace_hung(self, agent: SimulatedAgent) -> None:
        if agent is self.agent and agent.hung:
            agent.hung = False
            self.kill_agent()

    def _start_agent(self, keeper: SimulatedKeeper) -> None:
        if keeper is self.keeper and keeper.alive and not keeper.closing and self.up:
            self.agent = SimulatedAgent(self)
            self.agent.begin()
