"""Virtual machines of a simulated host: the product's power switch, with a QEMU and a guest that take their time."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from roost.keeper.clock import NEVER
from roost.keeper.machines.power import PowerHost, PowerSwitch
from roost.keeper.run import KeeperRun
from roost.sim.checks.machines import MachineTruth
from roost.sim.world.world import SideChance

BOOT_MS, CALL_MS, SHUTDOWN_MS = (20, 900), (1, 250), (10, 2_500)
FAILS = 0.03  # of calls to QEMU, while there are faults
DEAF = 0.2  # of guests: they do not hear the power button


class MachineDriver(Protocol):
    """What a machine needs of the driver that holds it."""

    now: int

    def powered(self, run: KeeperRun, power: str, serial: int, problem: str) -> None: ...

    def ended(self, run: KeeperRun, error: str) -> None: ...


class WatchedSwitch(PowerSwitch):
    """The truth knows each command that it carries out."""

    def __init__(self, host: PowerHost, serial: int, carries_out: Callable[[int], None]) -> None:
        super().__init__(host, serial)
        self._carries_out = carries_out

    def _carry_out(self, grace_ms: int, now: int) -> None:
        self._carries_out(self.action_serial)
        super()._carry_out(grace_ms, now)


class SimulatedMachine(PowerHost):
    def __init__(self, driver: MachineDriver, run: KeeperRun, truth: MachineTruth, power: str) -> None:
        assert run.machine is not None
        self._driver, self._run, self._truth = driver, run, truth
        self._chance: SideChance = truth.chance
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._numbers = count()
        self._life = 0  # of its QEMU
        self._is_deaf = self._chance.happens(DEAF)
        self.switch = WatchedSwitch(self, run.machine.power_serial, lambda serial: truth.carries_out(run.id, serial))
        self.switch.begin(power, driver.now)

    # time

    def next_at(self) -> int:
        return min(self._due[0][0] if self._due else NEVER, self.switch.next_at())

    def advance(self, now: int) -> None:
        while self._due and self._due[0][0] <= now:
            heappop(self._due)[2](now)
        self.switch.tick(now)

    def _later(self, span: tuple[int, int], action: Callable[[int], None]) -> None:
        """What QEMU or its guest does, if it still runs then."""
        life = self._life
        at = self._driver.now + self._chance.between(*span)

        def happens(now: int) -> None:
            if life == self._life:
                action(now)

        heappush(self._due, (at, next(self._numbers), happens))

    # what its power asks for

    def launch(self) -> None:
        self._life += 1
        self._later(BOOT_MS, self.switch.booted)

    def call(self, name: str) -> None:
        if name == "system_powerdown":
            if not self._is_deaf:
                self._later(SHUTDOWN_MS, self._leave)
            return
        error = "no room for that" if not self._truth.calm and self._chance.happens(FAILS) else ""
        self._later(CALL_MS, lambda now: self.switch.answered(name, error, now))

    def kill(self) -> None:
        self._later(CALL_MS, self._leave)

    def _leave(self, now: int) -> None:
        self._life += 1
        self.switch.left("", now)

    def report(self, power: str, serial: int, problem: str) -> None:
        self._truth.reported(self._run.id, power, serial)
        self._driver.powered(self._run, power, serial, problem)

    def end(self, error: str) -> None:
        self._life += 1
        self._driver.ended(self._run, error)
