"""Faults of a simulated world. Each seed draws some kinds of faults and how often they occur; then all faults end."""

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from roost.core.state.records import Settings
from roost.server.cluster.election import LeaderTiming
from roost.sim.checks.safety import Checkers
from roost.sim.world.cluster import SimulatedCluster
from roost.sim.world.host import SimulatedHost
from roost.sim.world.net import AGENT, SERVER, Net, Way
from roost.sim.world.server import Disk, SimulatedServer
from roost.sim.world.world import SimulatedClock, World

DRIFT_PPM_MAX = 10_000  # one per cent: twenty times what NTP corrects at most; 80 ms over a lease of 4 s on two hosts
WALL_JUMP_MS_MAX = 3_600_000
EPOCH_MS = 1_700_000_000_000
LEASES_MS = (1_500, 1_500, 4_000, 4_000)
OPERATOR_MS = (6_000, 15_000)  # until an operator has looked at a damaged store: more than the longest lease
STEP_UNITS_SMALL = 20  # of work in a step: cancelling and losing a few instances takes several
RESULTS_SMALL = 40  # bytes of a project: the results of three attempts
MARGIN_MS = 400  # as for a lease of 4 s; the keeper needs 140 ms of it, the clocks 80
SKEW_MS_MAX = 1_000  # by which clocks of servers that share a store may differ
KINDS = (
    "bad_weather", "partition", "break_stream", "kill_agent", "overtake_hello", "hang_agent", "crash_host",
    "leave_host", "crash_server", "hang_server", "bad_disk", "broken_disk",
)  # fmt: skip
#: What can go wrong among several servers.
SHARED_TROUBLE = ("cut_off_server", "lonely_server", "hand_over", "late_crash", "late_news")
RARE_TROUBLE = ("slow_start",)  # only for mutants that it alone reveals

Kind = Callable[[], None]


class Faults:
    often = ""  # a kind of fault that occurs in every world: for a mutant that only this kind reveals
    often_grace_ms = 0  # how long a leader without a store may answer in such worlds

    def __init__(
        self, world: World, net: Net, disk: Disk, team: SimulatedCluster, hosts: list[SimulatedHost], checkers: Checkers
    ) -> None:
        self._checkers = checkers
        self._world = world
        self._net = net
        self._disk = disk
        self._team = team
        self._hosts = hosts
        self._calm = False
        for server in team.servers:
            server.call_operator = partial(self._call_operator, server)
        self._is_operator_called = False
        self.gone: list[str] = []  # hosts that never come back
        self.jumps = 0.3  # of clocks, when a server starts again
        self.epoch_ms = EPOCH_MS  # what the wall clock shows as the world begins
        settings = Settings(
            lease_ms=world.one_of(LEASES_MS),
            lease_margin_ms=MARGIN_MS,
            placements_max=world.one_of((2, 2_000, 2_000)),
            backfill_after_ms=world.one_of((200, 2_000, 30_000)),
            preempt_margin=world.one_of((0, 20, 20, 40)),
            finished_max=world.one_of((5, 200_000, 200_000)),
            adopts=disk.forgetful,
        )
        if settings.placements_max == 2:
            settings = replace(settings, step_units=STEP_UNITS_SMALL, project_results_max=RESULTS_SMALL)
        outage_grace_ms = world.one_of((0, 3_000, 8_000))
        if self.often:  # short waits, so that its consequences come before the calm
            longest = self.often == "crash_server"  # from which only shorter leases follow
            settings = replace(settings, lease_ms=max(LEASES_MS) if longest else min(LEASES_MS))
            outage_grace_ms = self.often_grace_ms
        self._timing = LeaderTiming(600, 150, 60, outage_grace_ms)
        self._settings = replace(settings, grace_ms=self._timing.grace_ms if disk.shared else 0)

    def plan(self, until_ms: int) -> None:
        names = KINDS + SHARED_TROUBLE if self._disk.shared else KINDS
        kinds: list[Kind] = [getattr(self, name) for name in names]
        drawn = self._draw(kinds)
        if self.often in (*names, *RARE_TROUBLE):
            drawn.append((getattr(self, self.often), 4))
        for kind, times in drawn:
            for _ in range(times):
                self._world.at(self._world.between(0, until_ms), self._unless_calm, kind)

    def _draw(self, kinds: list[Kind]) -> list[tuple[Kind, int]]:
        """A few of many kinds, or many of two: faults that do harm only together rarely meet otherwise."""
        world = self._world
        if world.happens(0.5):
            often = [*kinds, *[self.bad_weather, self.partition, self.crash_server] * 3]
            return [(world.one_of(often), world.between(4, 10)) for _ in range(2)]
        likely = world.one_of((0.15, 0.3, 0.5))
        return [(kind, world.one_of((1, 2, 4, 8))) for kind in kinds if world.happens(likely)]

    def power_on_servers(self) -> None:
        for server in self._team.servers:
            self._start(server)

    def _start(self, server: SimulatedServer) -> None:
        if not server.up:
            has_ordered = self._disk.forgetful and server.life > 0
            settings = replace(self._settings, awaits_agents=has_ordered)
            server.start(self.new_clock(), settings, self._timing)

    def new_clock(self) -> SimulatedClock:
        """The clock of a server: the wall clock at its start, then monotonic."""
        world = self._world
        jumps = world.happens(self.jumps) and not self._disk.forgetful  # without memory, it trusts the wall clock
        most = SKEW_MS_MAX if self._disk.shared else WALL_JUMP_MS_MAX
        jump = world.between(-most, most) if jumps else 0
        return SimulatedClock(world, self.epoch_ms + jump, world.between(-DRIFT_PPM_MAX, DRIFT_PPM_MAX))

    def calm(self) -> None:
        self._calm = True
        self._world.tell("faults", "end here")
        self._disk.repair()
        self._disk.cut_off.clear()
        for host in self._hosts:
            self._net.heal(host.name)
            for way in self._ways(host):
                way.set()
            if host.agent is not None and host.agent.hung:
                host.agent.wake()
            if host.node != host.name:
                self.gone.append(host.name)
                host.crash()
        self._set_logs_away(False)
        for server in self._team.servers:
            server.wake()
        self.power_on()

    def power_on(self) -> None:
        for host in self._hosts:
            self._boot(host)
        self.power_on_servers()

    def _boot(self, host: SimulatedHost) -> None:
        if host.name not in self.gone:
            host.boot()

    # kinds of faults

    def bad_weather(self) -> None:
        """Loss, delay, repeats and reordering, one way or both, at one host or at all of them."""
        world = self._world
        loss, late = world.one_of((0.0, 0.1, 0.3, 0.5)), world.one_of((0.0, 0.0, 0.1, 0.5))
        repeat, ordered = world.one_of((0.0, 0.2, 0.6)), world.happens(0.2)
        directions = world.one_of(((0,), (0,), (1,), (0, 1)))
        for_ms = world.between(2_000, 15_000)
        world.tell("faults", f"weather {directions}: loss {loss}, late {late}, repeat {repeat}, ordered {ordered}")
        for host in self._hosts if world.happens(0.6) else [self._host()]:
            for number, way in enumerate(self._ways(host)):
                if number % 2 in directions:
                    way.set(loss, late, repeat, ordered=ordered)
                    world.after(for_ms, way.set)

    def partition(self, *, busy: bool = False) -> None:
        """One host cannot send, or not receive, or neither; `busy`: a host with live runs, if there is one."""
        world = self._world
        hosts = [item for item in self._hosts if not item.keeper.is_idle()] if busy else []
        host = world.one_of(hosts or self._hosts)
        deaf = world.happens(0.7)
        mute = not deaf or world.happens(0.5)
        servers = self._team.servers if world.happens(0.6) else [world.one_of(self._team.servers)]
        for server in servers:
            down, up = self._net.of(host.name, server.name)
            up.blocked, down.blocked = deaf, mute
        world.tell("faults", f"{host.name} cut off from {len(servers)} servers, up {deaf}, down {mute}")
        world.after(world.between(300, 14_000), self._net.heal, host.name)

    def break_stream(self) -> None:
        world = self._world
        streams = [stream for stream in self._net.streams if all(stream.is_open)]
        if not streams:
            return
        stream = world.one_of(streams)
        agent_first = world.happens(0.5)
        world.tell("faults", f"{stream} breaks at the {'agent' if agent_first else 'server'}")
        self._net.close(stream, up=agent_first, quietly=world.happens(0.4))
        stream.ends[AGENT if agent_first else SERVER].closed(stream)

    def kill_agent(self) -> None:
        self._host().kill_agent()

    def overtake_hello(self) -> None:
        """The hello of an agent is late; the agent dies meanwhile, and the hello of the next one is faster."""
        host = self._host()
        for way in self._ways(host)[1::2]:
            way.set(late=1.0, ordered=False)
            self._world.after(1_300, way.set)
        host.kill_agent()
        self._world.after(1_300, host.kill_agent)

    def hang_agent(self) -> None:
        self._host().hang_agent(self._world.between(300, 14_000))

    def crash_host(self) -> None:
        host = self._host()
        host.crash()
        if host is not self._hosts[0] and self._world.happens(0.25):
            self.gone.append(host.name)
        else:
            self._world.after(self._world.between(500, 12_000), self._boot, host)

    def leave_host(self) -> None:
        host = self._host()
        host.leave()
        self._world.after(self._world.between(3_000, 12_000), self._boot, host)

    def crash_server(self) -> None:
        """kill -9 of a server; the next one may have shorter or longer leases."""
        world, server = self._world, self._one_server()
        if not server.up:
            return
        self._crash(server)
        before, longest_ms = self._settings.lease_ms, world.one_of((300, 1_500, 9_000))
        if world.happens(0.5) and not self._disk.forgetful:
            self._settings = replace(self._settings, lease_ms=world.one_of(LEASES_MS))
        is_shorter = self._settings.lease_ms < before  # the nasty case: agents still hold longer leases
        if is_shorter or world.happens(0.3):
            self.partition(busy=is_shorter)
        world.after(world.between(50, 300 if is_shorter else longest_ms), self._start, server)

    def slow_start(self) -> None:
        """Logs cannot be kept, and the server dies. The next one knows nothing at first: it cannot read its store."""
        self._set_logs_away(True)
        self._world.after(self._world.between(1_000, 6_000), self._unless_calm, self._crash_without_store)

    def _crash_without_store(self) -> None:
        self._set_logs_away(False)
        self._disk.broken = True
        self._world.after(self._world.between(1_000, 3_000), self._disk.repair)
        self._crash_if_up(self._team.leader)

    def _set_logs_away(self, is_away: bool) -> None:
        for server in self._team.servers:
            server.logs_away = is_away

    def _call_operator(self, server: SimulatedServer) -> None:
        """An operator looks at a store that was refused. That takes longer than any lease."""
        if not self._is_operator_called:
            self._is_operator_called = True
            self._world.after(self._world.side_chance.between(*OPERATOR_MS), self._operate, server)

    def _operate(self, server: SimulatedServer) -> None:
        """Bring the files back, or go on without what is lost; only where no check remembers services for long.

        Without any record, a store trusts the wall clock for its tokens, and clocks jump here.
        """
        store, self._is_operator_called = self._disk.store, False
        assert store is not None
        if self._world.seed % 2 or store.is_empty or self._world.side_chance.happens(0.5):
            self._world.tell("operator", "brings back the files of the store")
            store.restore()
        else:
            self._world.tell("operator", "accepts the loss")
            self._disk.memory = store.accept_loss(self.epoch_ms + WALL_JUMP_MS_MAX + self._world.now)
            self._checkers.loss_accepted(self._disk.memory.snapshot())
        self._start(server)

    def _crash(self, server: SimulatedServer) -> None:
        """The other servers notice at once that nothing listens there, or do not."""
        server.crash()
        for other in self._team.servers:
            if other is not server and other.leadership is not None and self._world.happens(0.5):
                self._world.after(self._world.between(1, 60), other.leadership.found_dead, server.epoch)

    def hang_server(self) -> None:
        server = self._one_server()
        if server.up and not server.hung:
            server.hang()
            self._world.after(self._world.between(200, 8_000), server.wake)

    def cut_off_server(self) -> None:
        world, server = self._world, self._one_server()
        world.tell("faults", f"{server.name} cannot reach the store")
        self._disk.cut_off.add(server.name)
        world.after(world.between(100, 12_000), self._disk.cut_off.discard, server.name)

    def lonely_server(self) -> None:
        """The leader and a host with live runs are cut off from everything else."""
        world, server = self._world, self._team.leader if self._world.happens(0.7) else self._one_server()
        beside = world.one_of([host for host in self._hosts if not host.keeper.is_idle()] or self._hosts)
        world.tell("faults", f"{server.name} and {beside.name} are alone together")
        for_ms = world.between(1_000, 20_000)
        if world.happens(0.5):  # the store still gets what the server sends last, and its answer comes late
            self._disk.late_ms[server.name] = world.between(500, 1_100)
            world.after(for_ms, self._disk.late_ms.clear)
            world.after(world.between(50, 300), self._disk.cut_off.add, server.name)
        else:
            self._disk.cut_off.add(server.name)
        world.after(for_ms, self._disk.cut_off.discard, server.name)
        for host in self._hosts:
            for other in self._team.servers:
                if (host is beside) != (other is server):
                    for way in self._net.of(host.name, other.name):
                        way.blocked = True
            world.after(for_ms, self._net.heal, host.name)
        if world.happens(0.5):  # its successor is asked to let go soon
            world.after(world.between(900, 2_500), self._unless_calm, self.hand_over)

    def late_news(self) -> None:
        """Standbys get commits late, and one of them becomes leader: by request, or at once."""
        world = self._world
        for server in self._team.servers:
            if server.leadership is not None:
                server.leadership.lag(world.between(300, 1_500))
        if world.happens(0.5):
            world.after(world.between(50, 300), self._unless_calm, self.hand_over)
        else:  # so soon that the others know the leader, but not its last commits
            world.after(world.between(1, 100), self._crash_if_up, self._team.leader)

    def hand_over(self) -> None:
        self._world.tell("faults", "the leader is asked to let go")
        self._team.leader.let_go()

    def late_crash(self) -> None:
        """A leader that cannot reach the store dies only after another one was elected."""
        server = self._team.leader
        self._disk.cut_off.add(server.name)
        self._world.after(self._world.between(800, 3_000), self._disk.cut_off.discard, server.name)
        self._world.after(self._world.between(700, 3_000), self._crash_if_up, server)

    def _crash_if_up(self, server: SimulatedServer) -> None:
        if server.up and not self._calm:
            self._crash(server)
            self._world.after(self._world.between(50, 1_500), self._start, server)

    def _one_server(self) -> SimulatedServer:
        return self._team.leader if self._world.happens(0.7) else self._world.one_of(self._team.servers)

    def _ways(self, host: SimulatedHost) -> list[Way]:
        """All links of a host: down and up, server by server."""
        return [way for server in self._team.servers for way in self._net.of(host.name, server.name)]

    def bad_disk(self) -> None:
        world, disk = self._world, self._disk
        disk.fails = world.one_of((0.0, 0.0, 0.1, 0.3))
        disk.unsure = world.one_of((0.0, 0.0, 0.1, 0.3))
        disk.slow, disk.slow_ms_max = world.one_of((0.0, 0.1, 0.5)), world.one_of((50, 500, 6_000))
        world.tell("faults", f"disk fails {disk.fails}, unsure {disk.unsure}, slow {disk.slow} {disk.slow_ms_max}")
        world.after(world.between(500, 8_000), self._disk.repair)

    def broken_disk(self) -> None:
        self._world.tell("faults", "disk is broken")
        self._disk.broken = True
        self._world.after(self._world.between(100, 7_000), self._disk.repair)

    def _host(self) -> SimulatedHost:
        return self._world.one_of(self._hosts)

    def _unless_calm(self, kind: Kind) -> None:
        if not self._calm:
            kind()
