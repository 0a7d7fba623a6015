"""One seed, one world: first there are faults and nothing unsafe may happen, then all work has to end."""

from collections.abc import Callable

import msgspec

from roost.blobs.object_memory import MemoryObjects
from roost.core.explain.why import why
from roost.model.events import Maintain, MarkPool, Uncordon, Unset
from roost.model.limits import DEFAULT_POOL
from roost.model.records.node import Node
from roost.model.records.workload import Workload
from roost.model.spec.document import decode_document
from roost.model.states import ABSENT, FINISHED, InstanceState, NodeStatus, PoolStatus, WhenLost, WorkloadKind
from roost.sim.checks.convergence import approve_all, is_held_up, left_in_pools, not_converged, nurse, waits_rightly
from roost.sim.checks.oracle import CRASH_FOR_EVER, Oracle
from roost.sim.checks.pipelines import left_services
from roost.sim.checks.safety import Checkers
from roost.sim.scenarios.containers import plan_containers
from roost.sim.scenarios.files import plan_files
from roost.sim.scenarios.machines import OFFER, has_machines, plan_machines
from roost.sim.scenarios.pipelines import plan_pipelines
from roost.sim.scenarios.services import MINUTE_MS, SPARE, draw_themes, plan_living
from roost.sim.scenarios.work import facts_of, plan_work
from roost.sim.world.clients import Clients
from roost.sim.world.cluster import SimulatedCluster
from roost.sim.world.engine import SimulatedEngine
from roost.sim.world.faults import DRIFT_PPM_MAX, SHARED_TROUBLE, Faults
from roost.sim.world.files import SimulatedBlobs
from roost.sim.world.host import SimulatedHost, Site
from roost.sim.world.logs import LogReaders
from roost.sim.world.net import Net
from roost.sim.world.server import Disk
from roost.sim.world.store import SimulatedStore
from roost.sim.world.world import PROJECTS, SideChance, World, Wrong

CHAOS_MS = (6_000, 24_000)
CONTAINERS = 0.3  # of worlds have containers
CALM_MS = 300_000  # a service that kept ending waits a minute; a job array on one core needs some more
MAY_WAIT = ("unsatisfiable", "insufficient_resources", "quota_exceeded")  # as long as services run and limits are set
LONG_MS = 20_000  # a deadline that is longer than anything takes that has room
LOOK_MS = 2_000  # how often to look whether all is done


class SeedOutcome(msgspec.Struct):
    seed: int
    trouble: str  # empty: all was well
    fingerprint: str
    steps: int
    commits: int
    runs: int
    virtual_ms: int
    story: list[str] = []


def simulate(seed: int, show: Callable[[str], None] | None = None) -> SeedOutcome:
    world = World(seed, show)
    life = Life(world)
    trouble = ""
    try:
        life.chaos()
        life.calm()
    except (Wrong, AssertionError, LookupError, TypeError, ValueError) as error:
        trouble = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"
        world.tell("WRONG", trouble)
    counts = (life.checkers.steps, life.checkers.commits, len(life.truth.began_ever))
    return SeedOutcome(seed, trouble, world.fingerprint(), *counts, world.now, list(world.story) if trouble else [])


class Life:
    def __init__(self, world: World) -> None:
        self.world = world
        self.truth = Oracle(world)
        self.net = Net(world)
        self.disk = Disk(SimulatedBlobs(world))
        self.checkers = Checkers(world, self.truth, lambda: self.disk.memory.snapshot())
        self.disk.blobs.checkers = self.checkers.files
        self.checkers.files.stored = self.disk.blobs.stored
        self.disk.forgetful = self.checkers.forgetful = world.happens(0.1)
        self.checkers.logs.forgetful = self.checkers.files.forgetful = self.disk.forgetful
        self.checkers.machines.forgetful = self.disk.forgetful
        self.disk.shared = not self.disk.forgetful and (world.happens(0.5) or Faults.often in SHARED_TROUBLE)
        if not self.disk.forgetful and not self.disk.shared:
            self.disk.store = SimulatedStore(world.side_chance)
        if self.disk.shared and world.side_chance.happens(0.6):
            self.disk.objects = MemoryObjects()
        self.server = SimulatedCluster(world, self.net, self.disk, self.checkers)
        self.clients = Clients(world, self.server, self.checkers)
        self._site = Site(world, self.net, self.server, self.truth, self.checkers)
        self.themes = draw_themes(world)
        self.engine_chance = SideChance(f"containers {world.seed}")
        self.has_containers = self.engine_chance.happens(CONTAINERS)
        self.names: dict[str, str] = {}  # machine -> its node name
        self.hosts = [self._host(number) for number in range(world.between(2, 5))]
        if world.happens(0.1):
            self.hosts.append(self._host(len(self.hosts), node=self.hosts[-1].name))
        self.faults = Faults(world, self.net, self.disk, self.server, self.hosts, self.checkers)
        self.readers = LogReaders(world, self.server, self.checkers.logs)

    def chaos(self) -> None:
        until_ms = self.world.between(*CHAOS_MS)
        if self.themes.schedules:  # a minute begins while things go wrong
            self.faults.epoch_ms += MINUTE_MS - self.faults.epoch_ms % MINUTE_MS - self.world.between(1, until_ms)
            self.faults.jumps = 0.7
            self.world.at(self.world.between(until_ms // 2, until_ms), self.faults.crash_server)
        self.faults.power_on_servers()
        for host in self.hosts:
            late = self.world.between(0, until_ms) if self.world.happens(0.25) else self.world.between(0, 300)
            self.world.at(late, host.boot)
        self.clients.answers_lost = self.world.one_of((0.0, 0.0, 0.2))
        plan_work(self.world, self.clients, self.truth, self.hosts, until_ms, most=6 if any(self.themes) else 16)
        nodes = [host.node for host in self.hosts]
        self.services = plan_living(self.world, self.themes, self.clients, self.truth, nodes, until_ms)
        if self.disk.blobs.are_used:
            plan_files(self.world, self.disk.blobs.chance, self.clients, self.truth, until_ms)
        plan_pipelines(self.world, self.clients, self.truth, until_ms)
        if self.has_containers:
            engines = [host.engine for host in self.hosts if host.engine is not None]
            plan_containers(self.world, self.engine_chance, self.clients, self.truth, engines, until_ms)
        plan_machines(self.world, self.clients, self.truth, until_ms)
        self.faults.plan(until_ms)
        self.readers.begin(until_ms)
        self.world.run(until_ms)

    def calm(self) -> None:
        """After the faults: all work that fits runs, and once services are cancelled everything ends."""
        self.faults.calm()
        for host in self.hosts:
            if host.engine is not None:
                host.engine.up = host.engine.calm = True
        self.truth.calm = self.truth.machines.calm = True
        self.clients.answers_lost = 0.0
        self._wait_until(self._requests_answered)
        self.clients.request(Maintain, False)
        for host in self.hosts:
            self.clients.request(Uncordon, host.node)
        self._wait_until(lambda: self.unfinished(MAY_WAIT), nursing=True)
        self._fail_an_update()
        if self.themes.pools:
            self.clients.request(MarkPool, SPARE, PoolStatus.READY)
        for project in PROJECTS[1:]:
            self.clients.request(Unset, "project", project)
            self.clients.request(Unset, "reservation", f"for-{project}")
        for workload in list(self.server.state.workloads.values()):
            if workload.policy.kind != WorkloadKind.JOB or workload.policy.schedule:
                self.clients.cancel(workload.key, None)
        self._wait_until(lambda: self.unfinished(("unsatisfiable",)))
        self.checkers.reports_are_true()

    def _fail_an_update(self) -> None:
        existing = next(filter(None, map(self._settled_service, self.services)), None)
        if existing is None:
            return
        document = decode_document(existing.document)
        assert document.update is not None
        document.command, document.update.healthy_after = CRASH_FOR_EVER, "3s"  # longer than it ever runs
        self.clients.apply(msgspec.to_builtins(document))
        self._wait_until(self._requests_answered)
        self._wait_until(lambda: self._gone_back(existing.key, existing.document))
        # With an operator: room that became free may have let another service's canaries start.
        self._wait_until(lambda: self.unfinished(MAY_WAIT), nursing=True)

    def _settled_service(self, key: str) -> Workload | None:
        """A service whose instances all run, and that would be rolled back if an update failed."""
        state = self.server.state
        workload = state.workloads.get(key)
        if workload is None or workload.unstarted_end_state or workload.finished_ms or workload.adopted:
            return None
        update = workload.policy.update
        nodes = [instance.node for instance in state.instances.values() if instance.workload == key and instance.node]
        has_rollback = update is not None and update.rollback and update.deadline_ms >= LONG_MS
        is_stuck = is_held_up(state, workload, MAY_WAIT) or any(map(self._is_gone, nodes))
        return workload if workload.rollout is not None and has_rollback and not is_stuck else None

    def _gone_back(self, key: str, document: bytes) -> list[str]:
        workload = self.server.state.workloads[key]
        if workload.document != document:
            return [f"version {workload.version} of {key} always fails and has not gone back: {workload.rollout}"]
        return []

    def _wait_until(self, unfinished: Callable[[], list[str]], *, nursing: bool = False) -> None:
        until_ms = self.world.now + CALM_MS
        while left := unfinished():
            if self.world.now >= until_ms:
                raise Wrong(f"not done after {CALM_MS} ms without faults: {left[0]} ({len(left)} in all)")
            self.faults.power_on()
            if not self._requests_answered():
                approve_all(self.server.state, self.clients)
                if nursing:
                    nurse(self.server.state, self.clients, MAY_WAIT)
            self.world.run(self.world.now + LOOK_MS)

    def _requests_answered(self) -> list[str]:
        if self.server.ready and not self.clients.pending:
            return []
        return [f"server ready: {self.server.ready}, clients wait for {self.clients.pending} answers"]

    def unfinished(self, may_wait: tuple[str, ...]) -> list[str]:
        """What has not reached its end yet; for these reasons an instance may stay pending."""
        left = self._requests_answered()
        if left:
            return left
        state = self.server.state
        for host in self.hosts:
            node = state.nodes.get(host.node)
            if host.up and (node is None or node.status != NodeStatus.READY) and not (node and self._is_reserved(node)):
                left.append(f"{host.name} is up and {node.status if node else 'unknown'}")
        for workload in state.workloads.values():
            if not workload.finished_ms:
                left += self._unfinished(workload, may_wait)
                left += not_converged(state, workload, may_wait, self._is_gone)
        left += left_services(state)
        left += self.checkers.machines.unfinished(state)
        left += left_in_pools(state, self.truth, self.names)
        left += self.checkers.living.late_schedules(self.server.leader.clock.now_ms())
        for name, contact in state.liveness.items():
            left += [f"{name} counts the room of {token}, which is not expected" for token in contact.orphans]
        allocated = {token: name for name, tokens in state.allocated.items() for token in tokens}
        for token, live in self.truth.live.items():
            node = state.nodes.get(self.names[live.host])
            if allocated.get(token) != self.names[live.host] and not (node and self._is_reserved(node)):
                left.append(f"{live.run.workload}.{live.run.index} still runs on {live.host} as {token}")
        for host in self.hosts:
            if host.up and host.engine is not None:
                left += [f"{host.name} has container {id}, which no run has" for id in host.engine.left()]
        return left or self._unshipped()

    def _unshipped(self) -> list[str]:
        """Logs that live machines have not shipped, or that no server has as its attempt has reported it."""
        agents = [host.agent for host in self.hosts if host.up and host.agent is not None]
        busy = [f"{agent.host.name} has logs to ship" for agent in agents if not agent.spool.machine.is_idle]
        # An agent whose name is taken by a machine that is gone keeps its logs until an operator frees the name.
        welcome = [agent for agent in agents if agent.machine.actor.session]
        logs = [log for agent in welcome for log in agent.spool.machine.logs.values()]
        busy += [f"{log.name} is not sealed" for log in logs if log.is_shipped and not log.is_durable]
        for host in self.hosts:
            if host.name in self.faults.gone and not host.up:
                host.files.lost()
        return busy or self.readers.short() or self.checkers.logs.left(self.server.leader.objects)

    def _unfinished(self, workload: Workload, may_wait: tuple[str, ...]) -> list[str]:
        state, policy, left = self.server.state, workload.policy, []
        for index in range(workload.instance_count):
            instance = state.instances.get(f"{workload.key}.{index}")
            current = instance.state if instance else workload.unstarted_end_state or InstanceState.QUEUED
            stored = policy.when_lost == WhenLost.PIN and instance is not None and self._is_gone(instance.node)
            if workload.adopted and instance is None:
                done = True  # of an earlier life of a forgetful server, which no agent has reported
            elif current == InstanceState.QUEUED:
                code = why(state, workload.key, index).code
                done = code in may_wait or self._waits_for_kept(workload)
                done = done or (code == "home" and bool(may_wait))
                done = done or (code == "after" and waits_rightly(state, workload))
            elif instance is None or current in FINISHED:
                done = True
            elif stored:
                done = current != InstanceState.STOPPING or instance.requeue_after_stop
            else:
                is_running = current == InstanceState.RUNNING and instance.token in self.truth.live
                done = policy.kind != WorkloadKind.JOB and is_running
            if not done:
                left.append(f"{workload.key}.{index} is {current}")
        return left

    def _waits_for_kept(self, workload: Workload) -> bool:
        """Whether it cannot start before another of its gang has stopped on a machine that is gone for good."""
        gang = self.server.state.gangs.get(workload.policy.gang, {}) if workload.policy.gang else {}
        instances = [instance for instance in self.server.state.instances.values() if instance.workload in gang]
        return any(instance.state == InstanceState.STOPPING and self._is_gone(instance.node) for instance in instances)

    def _is_gone(self, name: str) -> bool:
        node = self.server.state.nodes.get(name)
        if node is None or node.status not in ABSENT:
            return False
        return node.identity.partition("/")[0] in self.faults.gone

    def _is_reserved(self, node: Node) -> bool:
        """Whether the name is kept for a machine that is gone, because of fenced work."""
        return self._is_gone(node.name) and bool(self.server.state.allocated[node.name])

    def _host(self, number: int, node: str = "") -> SimulatedHost:
        world, name = self.world, f"n{number}"
        offer = OFFER if has_machines(world) else ()
        facts = facts_of(world, number, SPARE if self.themes.pools and number % 2 else DEFAULT_POOL)
        if offer:
            facts = msgspec.structs.replace(facts, drivers=(*facts.drivers, "qemu"), vm=offer)
        self.names[name] = node or name
        self.truth.capacity[name] = facts.resources
        host = SimulatedHost(self._site, name, facts, world.between(-DRIFT_PPM_MAX, DRIFT_PPM_MAX), node)
        if self.has_containers:
            host.engine = SimulatedEngine(self.engine_chance, f"{number:012x}")
        return host
