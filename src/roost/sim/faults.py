"""What goes wrong in a simulated world. Each seed draws some kinds of trouble and how often; then all trouble ends."""

from collections.abc import Callable

from roost.core.state import Settings
from roost.sim.host import Host
from roost.sim.net import Net
from roost.sim.server import Disk, Server
from roost.sim.world import Clock, World

DRIFT_PPM_MAX = 10_000  # one per cent: twenty times what NTP corrects at most; 80 ms over a lease of 4 s on two hosts
WALL_JUMP_MS_MAX = 3_600_000
EPOCH_MS = 1_700_000_000_000
LEASES_MS = (1_500, 1_500, 4_000, 4_000)
MARGIN_MS = 400  # as for a lease of 4 s; the keeper needs 140 ms of it, the clocks 80


Kind = Callable[[], None]


class Faults:
    """Draws trouble and puts it on the heap until the calm."""

    def __init__(self, world: World, net: Net, disk: Disk, server: Server, hosts: list[Host]) -> None:
        self._world = world
        self._net = net
        self._disk = disk
        self._server = server
        self._hosts = hosts
        self._calm = False
        self.gone: list[str] = []  # hosts that never come back
        self._lease_ms = world.one_of(LEASES_MS)
        self._placements_max = world.one_of((2, 2_000, 2_000))
        self._patience_ms = world.one_of((200, 2_000, 30_000))
        self._preempt_margin = world.one_of((0, 20, 20, 40))
        self._finished_max = world.one_of((5, 200_000, 200_000))

    def plan(self, until_ms: int) -> None:
        """Some kinds of trouble, each at random moments."""
        kinds: list[Kind] = [
            self.bad_weather,
            self.partition,
            self.break_stream,
            self.kill_agent,
            self.overtake_hello,
            self.hang_agent,
            self.crash_host,
            self.leave_host,
            self.crash_server,
            self.hang_server,
            self.bad_disk,
            self.broken_disk,
        ]
        for kind, times in self._draw(kinds):
            for _ in range(times):
                self._world.at(self._world.between(0, until_ms), self._unless_calm, kind)

    def _draw(self, kinds: list[Kind]) -> list[tuple[Kind, int]]:
        """A little of many kinds, or much of two: what has to meet in order to hurt meets rarely otherwise."""
        world = self._world
        if world.happens(0.5):
            often = [*kinds, *[self.bad_weather, self.partition, self.crash_server] * 3]
            return [(world.one_of(often), world.between(4, 10)) for _ in range(2)]
        likely = world.one_of((0.15, 0.3, 0.5))
        return [(kind, world.one_of((1, 2, 4, 8))) for kind in kinds if world.happens(likely)]

    def start_server(self) -> None:
        """A new server process; its host's clock may have been set meanwhile."""
        if not self._server.up:
            self._server.start(self.new_clock(), self._settings())

    def _settings(self) -> Settings:
        return Settings(
            lease_ms=self._lease_ms,
            lease_margin_ms=MARGIN_MS,
            placements_max=self._placements_max,
            finished_max=self._finished_max,
            patience_ms=self._patience_ms,
            preempt_margin=self._preempt_margin,
        )

    def new_clock(self) -> Clock:
        """The clock of a server: the wall at its start, then monotonic."""
        world = self._world
        jumps = world.happens(0.3) and not self._disk.forgetful  # who remembers nothing has to trust the wall clock
        jump = world.between(-WALL_JUMP_MS_MAX, WALL_JUMP_MS_MAX) if jumps else 0
        return Clock(world, EPOCH_MS + jump, world.between(-DRIFT_PPM_MAX, DRIFT_PPM_MAX))

    def calm(self) -> None:
        """All trouble ends; what broke is repaired, but for hosts that are gone for good."""
        self._calm = True
        self._world.tell("faults", "end here")
        self._disk.fails = self._disk.unsure = self._disk.slow = 0.0
        self._disk.broken = False
        for host in self._hosts:
            self._net.heal(host.name)
            for way in self._net.of(host.name):
                way.set()
            if host.agent is not None and host.agent.hung:
                host.agent.wake()
            if host.node != host.name:
                self.gone.append(host.name)
                host.crash()
        self._server.wake()
        self.power_on()

    def power_on(self) -> None:
        """What is down and not gone for good is started."""
        for host in self._hosts:
            if host.name not in self.gone:
                host.boot()
        self.start_server()

    # kinds of trouble

    def bad_weather(self) -> None:
        """Loss, delay, repeats and reordering, one way or both, at one host or at all of them."""
        world = self._world
        loss, late = world.one_of((0.0, 0.1, 0.3, 0.5)), world.one_of((0.0, 0.0, 0.1, 0.5))
        repeat, ordered = world.one_of((0.0, 0.2, 0.6)), world.happens(0.2)
        directions = world.one_of(((0,), (0,), (1,), (0, 1)))
        for_ms = world.between(2_000, 15_000)
        world.tell("faults", f"weather {directions}: loss {loss}, late {late}, repeat {repeat}, ordered {ordered}")
        for host in self._hosts if world.happens(0.6) else [self._host()]:
            for direction in directions:
                way = self._net.of(host.name)[direction]
                way.set(loss, late, repeat, ordered=ordered)
                world.after(for_ms, way.set)

    def partition(self) -> None:
        """One host cannot speak, or not hear, or neither."""
        world, host = self._world, self._host()
        down, up = self._net.of(host.name)
        up.blocked = world.happens(0.7)
        down.blocked = not up.blocked or world.happens(0.5)
        world.tell("faults", f"{host.name} cut off, up {up.blocked}, down {down.blocked}")
        world.after(world.between(300, 14_000), self._net.heal, host.name)

    def break_stream(self) -> None:
        """A stream ends on one side first; the other may not notice."""
        world = self._world
        streams = [each for each in self._net.streams if each.agent_open and each.server_open]
        if not streams:
            return
        stream = world.one_of(streams)
        agent_first = world.happens(0.5)
        world.tell("faults", f"{stream} breaks at the {'agent' if agent_first else 'server'}")
        self._net.close(stream, up=agent_first, quietly=world.happens(0.4))
        (stream.agent if agent_first else stream.server).closed(stream)

    def kill_agent(self) -> None:
        """kill -9 of an agent."""
        self._host().kill_agent()

    def overtake_hello(self) -> None:
        """An agent's hello takes the long way; the agent dies meanwhile, and the next one's hello is faster."""
        host = self._host()
        way = self._net.of(host.name)[1]
        way.set(late=1.0, ordered=False)
        host.kill_agent()
        self._world.after(1_300, way.set)
        self._world.after(1_300, host.kill_agent)

    def hang_agent(self) -> None:
        """SIGSTOP of an agent."""
        self._host().hang_agent(self._world.between(300, 14_000))

    def crash_host(self) -> None:
        """A machine loses power, for a while or for good."""
        host = self._host()
        host.crash()
        if host is not self._hosts[0] and self._world.happens(0.25):
            self.gone.append(host.name)
        else:
            self._world.after(self._world.between(500, 12_000), self._boot, host)

    def leave_host(self) -> None:
        """A machine is shut down in order and started again later."""
        host = self._host()
        host.leave()
        self._world.after(self._world.between(3_000, 12_000), self._boot, host)

    def crash_server(self) -> None:
        """kill -9 of the server; the next one may have shorter or longer leases."""
        world = self._world
        if not self._server.up:
            return
        self._server.crash()
        before, longest_ms = self._lease_ms, world.one_of((300, 1_500, 9_000))
        if world.happens(0.5) and not self._disk.forgetful:
            self._lease_ms = world.one_of(LEASES_MS)
        if self._lease_ms < before:
            longest_ms = 300  # the nasty case: longer leases are still held
        if self._lease_ms < before or world.happens(0.3):
            self.partition()
        world.after(world.between(50, longest_ms), self.start_server)

    def hang_server(self) -> None:
        """SIGSTOP of the server, for less or more than a lease."""
        if self._server.up and not self._server.hung:
            self._server.hang()
            self._world.after(self._world.between(200, 8_000), self._server.wake)

    def bad_disk(self) -> None:
        """Commits that are slow, fail, or are told to have failed."""
        world, disk = self._world, self._disk
        disk.fails = world.one_of((0.0, 0.0, 0.1, 0.3))
        disk.unsure = world.one_of((0.0, 0.0, 0.1, 0.3))
        disk.slow, disk.slow_ms_max = world.one_of((0.0, 0.1, 0.5)), world.one_of((50, 500, 6_000))
        world.tell("faults", f"disk fails {disk.fails}, unsure {disk.unsure}, slow {disk.slow} {disk.slow_ms_max}")
        world.after(world.between(500, 8_000), self._repair_disk)

    def broken_disk(self) -> None:
        """Nothing can be written or read for a while."""
        self._world.tell("faults", "disk is broken")
        self._disk.broken = True
        self._world.after(self._world.between(100, 7_000), self._repair_disk)

    def _repair_disk(self) -> None:
        self._disk.fails = self._disk.unsure = self._disk.slow = 0.0
        self._disk.broken = False

    def _boot(self, host: Host) -> None:
        if host.name not in self.gone:
            host.boot()

    def _host(self) -> Host:
        return self._world.one_of(self._hosts)

    def _unless_calm(self, kind: Kind) -> None:
        if not self._calm:
            kind()
