"""The agent's service: driver, stream, spool and health checks, all at the command of the agent's machine."""

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from roost.agent import machine
from roost.agent.actor import Actor, Forget, Lease
from roost.agent.connection.identity import NodeIdentity, keep_renewed
from roost.agent.connection.machine import Connected, LogLine
from roost.agent.connection.stream import AgentStream
from roost.agent.containers import EngineWatch
from roost.agent.files.copies import Copies
from roost.agent.files.fetch import remove_tree
from roost.agent.files.job import TransferJob
from roost.agent.files.progress import CollectOutputs, FetchInputs, LeaveInputs, LeaveOutputs
from roost.agent.files.transfers import Found, Transfers
from roost.agent.health.effects import CheckHealth, LeaveHealth, WatchHealth
from roost.agent.health.probe import end_leftovers
from roost.agent.health.runner import Checks
from roost.agent.log import log
from roost.agent.logs.spool import Spool
from roost.agent.machines import MachineWatch
from roost.agent.prepare import NO_MACHINES, IsolationOf, not_isolated
from roost.agent.results import ResultFiles
from roost.agent.tunnels.place import Place, place_of
from roost.agent.tunnels.tunnels import NodeTunnels
from roost.drivers.container.engine import ContainerEngine
from roost.drivers.container.image_cache import ImageCache
from roost.drivers.container.images import ImageFound, ImageUnavailable
from roost.drivers.container.request import ContainerHost, HostVolume
from roost.drivers.qemu.host import MachineHost
from roost.drivers.qemu.probe import NONE
from roost.keeper.clock import now_ms
from roost.keeper.processes import MARK
from roost.model.protocol import PowerOrder, Usage
from roost.model.records.files import InputFailure, InputProblem, Outputs
from roost.model.records.node import Facts
from roost.ports.driver import Driver, Ended, Event, KnownRuns, Machine, RunRequest, Started, StepBegan
from roost.supervisor import SupervisedTasks, Work

KEEPER_S_MAX = 5.0  # the keeper answers at once
FAREWELL_S = 1.7  # with the wait for the last events: we are gone two seconds after we were asked
NO_VOLUMES: dict[str, HostVolume] = {}
SWEEP_S = 30.0  # between looks at work directories that runs have left full


def agent_tasks() -> SupervisedTasks:
    def log_restart(task: str, end: str, pause_s: float) -> None:
        log(f"the task {task} has ended ({end}): it is restarted in {pause_s:g} s")

    return SupervisedTasks("agent", log_restart)


class Service:
    """One agent. `reported` takes the events of the driver; `run` ends after `stop`."""

    driver: Driver  # given before `run`: a driver is made with the callback of its service

    def __init__(
        self, directory: str, name: str, identity: str, facts: Facts, server: str,
        usage: Callable[[], Usage | None], input_cache_bytes: int = 0, engine_sockets: Sequence[str] = (),
        volumes: Mapping[str, HostVolume] = NO_VOLUMES,
        isolation: IsolationOf = not_isolated, qemu: str = NONE, machines: MachineHost = NO_MACHINES,
        image_disk_percent: int = 100,
    ) -> None:  # fmt: skip
        self._directory = directory
        self._mark = os.environ.get(MARK, "")  # what the keeper starts carries it, and so do we
        self.actor = Actor(name, identity, facts)
        mark, began = self._mark, now_ms()
        self.machine = machine.AgentMachine(self.actor, server, directory, mark, random.random, began)
        self.machine.isolation = isolation
        self._results = ResultFiles(directory)
        self._identity = NodeIdentity(directory)
        self._usage = usage
        self.tasks = agent_tasks()
        self.link = AgentStream(
            self.machine, self._identity, self._perform, self._measure, self._look_for_copies, self._look_for_tunnels
        )
        self.spool = Spool(f"{directory}/logs", self.link.ship, self._live_logs)
        self.files = Transfers(
            directory,
            input_cache_bytes,
            self.link.call,
            self._fetched,
            self._collected,
            self._ensure_image,
            self._stored,
        )
        self.copies = Copies(
            directory, self.files.open_cache, self.files.flights, self.link.call, self.actor.is_running, now_ms
        )
        self.machine.containers = ContainerHost(identity.partition("/")[0], dict(volumes))
        node = self.machine.containers.node
        known = self.machine.logs
        self.images = ImageCache(Path(directory, "images.json"), image_disk_percent, lambda token: token in known)
        self.engine = EngineWatch(node, engine_sockets, self._is_live, self._engine_changed, self.images)
        self.machines = MachineWatch(machines, qemu, facts.arch, self.link.call, self._machines_changed)
        self.checks = Checks(self._probed)
        self.tunnels = NodeTunnels(self.link.call, self.link.own_channel, self.actor.is_running, self._place_of)
        self._restored = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.timeout(KEEPER_S_MAX):
            await self._restored.wait()
        live = set(self.machine.live_attempts())
        await asyncio.gather(self.engine.begin(), self.machines.begin())
        self.spool.begin(name for token, names in self.machine.logs.items() if token not in live for name in names)
        keep, works = self.tasks.keep, self._works()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(keep(name, work)) for name, work in works.items()]
            tasks.append(group.create_task(self.tasks.need("connection", self.link.run, self._stop.is_set)))
            await self._stop.wait()
            await self._farewell()
            for task in tasks:
                task.cancel()

    def _works(self) -> dict[str, Work]:
        """What an agent does beside its connection, each restarted when it ends."""
        return {
            "logs": self.spool.run, "health": self.checks.run, "sweep": self._sweep, "files": self.files.run,
            "copies": self.copies.run, "tunnels": self.tunnels.run, "engine": self.engine.run,
            "machines": self.machines.run,
            "renewal": lambda: keep_renewed(self._identity, self.link.open_channel),
        }  # fmt: skip

    def stop(self) -> None:
        self._stop.set()

    def reported(self, event: Event) -> None:
        match event:
            case Started(id, pid) | StepBegan(id=id, pid=pid) if pid:
                self.checks.entered(int(id), pid)
                self.tunnels.entered(int(id), pid)
            case KnownRuns(runs=runs):
                for run in runs:
                    if run.id.isdecimal():
                        self.checks.entered(int(run.id), run.pid)
                        self.tunnels.entered(int(run.id), run.pid)
            case Ended(id) if id.isdecimal():
                self.tunnels.left(int(id))
        self._perform(self.machine.happened(self._results.added(event), now_ms()))

    def _probed(self, token: int, problem: str) -> None:
        self._perform(self.machine.probed(token, problem, now_ms()))

    def _perform(self, effects: Sequence[machine.Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)
        self.link.nudge()

    def _carry_out(self, effect: machine.Effect) -> None:
        match effect:
            case RunRequest() | machine.StopRun() | Forget() | Lease() | PowerOrder():
                self._order(effect)
            case WatchHealth(token, target):
                self.checks.watch(token, target)
            case CheckHealth(token, pause_ms):
                self.checks.begin(token, pause_ms)
            case LeaveHealth(token):
                self.checks.leave(token)
            case machine.CompleteLog(name, size):
                self.spool.ended(name, size)
            case machine.ReleaseLog(name):
                self.spool.release(name)
            case FetchInputs() | LeaveInputs() | CollectOutputs() | LeaveOutputs():
                self.files.perform(effect)
            case machine.TakenOver(count):
                if count:
                    end_leftovers(self._mark)
                self._restored.set()
            case Connected():
                self.spool.reconnected()
            case LogLine(text):
                log(text)
            case _:
                self.link.perform(effect)

    def _order(self, effect: RunRequest | machine.StopRun | Forget | Lease | PowerOrder) -> None:
        match effect:
            case RunRequest():
                self.driver.start(effect)
            case machine.StopRun(id, grace_ms, reason, detail):
                self.driver.stop(id, grace_ms, reason, detail)
            case Forget(token):
                self.driver.forget(str(token))
                self._results.forget(token)
            case Lease(until_ms):
                self.driver.lease(until_ms)
            case PowerOrder(token, serial, action, grace_ms):
                self.driver.power(str(token), serial, action, grace_ms)

    def _look_for_copies(self) -> None:
        self.copies.wake()

    def _look_for_tunnels(self) -> None:
        self.tunnels.wake()

    def _place_of(self, token: int, pid: int) -> Place:
        run, node = self.actor.attempts[token].run, self.actor.node
        return place_of(run, pid, node, self._directory, self._mark, self.machine.isolation, self.machine.containers)

    def _fetched(self, token: int, failure: InputFailure | None, found: Found | None) -> None:
        image = found if isinstance(found, ImageFound) else None
        if image is not None:
            self.actor.identified(token, image.digest, image.pulled_ms)
        machine = found if isinstance(found, Machine) else None
        self._perform(self.machine.fetched(token, failure, now_ms(), image.id if image is not None else "", machine))

    def _ensure_image(self, job: TransferJob, effect: FetchInputs) -> ImageFound:
        """In a thread of the transfer: its image, which is on the node by then."""
        assert effect.image is not None
        engine, arch = self.machine.containers.engine, self.actor.facts.arch
        if engine is None:
            raise ImageUnavailable(effect.image.image, InputProblem.ENGINE_AWAY, "")
        password = effect.password.get("password", "")

        def progress(percent: int) -> None:
            self.files.pulling[effect.token] = percent
            self.machine.link.usage_is_urgent = True

        return self.images.ensure(engine, effect.token, effect.image, password, arch, progress, job.check)

    def _is_live(self, run: str) -> bool:
        return run.isdecimal() and int(run) in self.machine.live_attempts()

    def _engine_changed(self, engine: ContainerEngine | None) -> None:
        self._perform(self.machine.engine_changed(engine, now_ms()))

    def _machines_changed(self, host: MachineHost) -> None:
        self._perform(self.machine.machines_changed(host, now_ms()))

    def _stored(self, token: int, outputs: Outputs) -> None:
        self.machine.stored(token, outputs)

    def _collected(self, token: int, outputs: Outputs) -> None:
        self._perform(self.machine.collected(token, outputs, now_ms()))

    def _measure(self) -> Usage | None:
        usage = self._usage()
        if usage is None:
            return None
        pulling = dict(self.files.pulling)
        self.machine.link.usage_is_urgent = bool(pulling)
        return msgspec.structs.replace(
            usage, task_restarts=dict(self.tasks.restarts), logs_stuck_ms=self.spool.stuck_ms(now_ms()),
            pulling=pulling, images=self.images.keys,
        )  # fmt: skip

    def _live_logs(self) -> Iterable[str]:
        return [name for token in self.machine.live_attempts() for name in self.machine.logs[token]]

    # the end, and what is left

    async def _farewell(self) -> None:
        """Send the rest. If something still runs, another agent takes it over, and this is no goodbye."""
        self._perform(self.machine.stop(now_ms()))
        try:
            async with asyncio.timeout(machine.LAST_EVENTS_MS / 1_000 + FAREWELL_S):
                await self.link.over.wait()
                if self.machine.has_sent_goodbye:
                    await self.spool.idle.wait()
        except TimeoutError:
            log("the server did not receive everything before the end")

    async def _sweep(self) -> None:
        """Remove work directories that runs have left full; empty ones are the driver's."""
        work = f"{self._directory}/work"
        os.makedirs(work, mode=0o700, exist_ok=True)
        while True:
            left = [name for name in os.listdir(work) if name.isdecimal() and int(name) not in self.machine.logs]
            for name in left:
                await asyncio.to_thread(remove_tree, Path(work, name))
            await asyncio.sleep(SWEEP_S)
