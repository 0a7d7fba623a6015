"""Virtual machines: the contract of the process driver on real QEMU, and how machines outlive agents."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roost.drivers.process import ProcessDriver
from roost.model.states import Power, PowerAction
from roost.ports.driver import Ended, Event, KnownRuns, Machine, MachineDisk, PowerChanged
from tests.components.guest import MEMORY, shared_guest
from tests.drivers.test_process import CASES, Case, plain, run_of
from tests.keeper.keeper_harness import KeeperHarness, marked, now_ms

BOOT_S = 180.0  # of a guest without KVM on a busy machine; 4.5 s at rest
#: Not here: exit codes and steps, which a machine does not have, and times so short that no guest has booted by then.
CONTRACT = (
    "ends well", "takes too long", "is stopped", "is stopped and does not listen", "is stopped at once",
    "has no lease", "its lease ends", "it is not leased", "its lease is taken back while it stops", "is ordered twice",
)  # fmt: skip


class QemuBench:
    """One keeper, and a driver as an agent has it."""

    def __init__(self, tmp_path: Path) -> None:
        self.guest = shared_guest()
        self.harness = KeeperHarness(tmp_path)
        self.directory = str(tmp_path / "machines" / "m")
        self.events: list[Event] = []

    async def connect(self) -> KnownRuns:
        self.events = []
        self.driver = ProcessDriver(self.events.append, lambda: None)
        await self.driver.connect(f"{self.harness.dir}/keeper.sock")
        await self.until(lambda: self.events)
        first = self.events.pop(0)
        assert isinstance(first, KnownRuns)
        return first

    def machine(self, script: str, **more: Any) -> Machine:
        guest = self.guest
        cmdline = guest.cmdline(script)
        return Machine(
            self.directory, guest.program, MEMORY, kernel=guest.kernel, initrd=guest.initrd, cmdline=cmdline, **more
        )

    def log(self) -> bytes:
        return self.harness.log("a")

    async def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + BOOT_S
        while not holds():
            assert time.monotonic() < deadline, (self.events, self.log()[-500:], self.harness.errors.read_text())
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self.driver.close()
        self.harness.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[QemuBench]:
    made = QemuBench(tmp_path)
    made.harness.keeper()
    await made.connect()
    yield made
    made.close()


def script(case: Case) -> str:
    """As test_process.script, for a guest."""
    (act,) = case.acts
    wait = "sleep 1000" if act.after_ms is None else f"sleep {act.after_ms / 1000}"
    return f"{'deaf; ' if act.term_ms is None else ''}echo ready; {wait}"


def outcome(event: Any) -> object:
    """As of a process: what was asked to end and did so has powered off, where a process dies by TERM."""
    if isinstance(event, Ended) and event.cause in ("stopped", "timed_out") and event.code == 0:
        event = msgspec.structs.replace(event, code=None, signal=signal.SIGTERM)
    return plain(event)


@pytest.mark.parametrize("name", CONTRACT)
async def test_the_contract_of_drivers(bench: QemuBench, name: str) -> None:
    case = CASES[name]
    request = msgspec.structs.replace(run_of(case, bench.harness.work), machine=bench.machine(script(case)))
    if name == "takes too long":
        request = msgspec.structs.replace(request, grace_ms=120_000)  # it listens when it has booted
    begun = now_ms()
    bench.driver.lease(begun + case.lease_ms if case.lease_ms else 0)
    bench.driver.start(request)
    if case.orders and name != "is ordered twice":
        await bench.until(lambda: b"ready" in bench.log())
    for order in case.orders.values():
        order(bench.driver, now_ms())
    others = lambda: [event for event in bench.events if not isinstance(event, PowerChanged)]  # noqa: E731
    await bench.until(lambda: len(others()) >= len(case.expected))
    assert [outcome(event) for event in others()] == case.expected, bench.events
    left = [pid for pid in marked(bench.harness.dir) if b"qemu" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert left == []


async def test_a_machine_outlives_its_agent_and_takes_commands_of_the_next(bench: QemuBench) -> None:
    """Its log, disks, power and its end are as if nothing had happened."""
    ticks = "n=0; while :; do n=$((n+1)); echo tick $n; printf $n > /dev/vda; sleep 0.2; done"
    machine = bench.machine(ticks, disks=[MachineDisk("data", 1 << 20)])
    request = run_of(CASES["is stopped"], bench.harness.work)
    bench.driver.start(msgspec.structs.replace(request, machine=machine, leased=False, note="the order"))
    await bench.until(lambda: b"tick 2" in bench.log())
    bench.driver.close()
    (run,) = (await bench.connect()).runs
    assert (run.state, run.power, run.power_serial, run.note) == ("running", Power.RUNNING, 0, "the order")
    bench.driver.power("a", 1, PowerAction.PAUSE, 0)
    await bench.until(lambda: bench.events)
    bench.driver.close()
    (run,) = (await bench.connect()).runs
    assert (run.power, run.power_serial) == (Power.PAUSED, 1)
    size = len(bench.log())
    bench.driver.power("a", 1, PowerAction.PAUSE, 0)  # an order that came twice
    bench.driver.power("a", 2, PowerAction.RESUME, 0)
    await bench.until(lambda: len(bench.log()) > size)
    log = bench.log().decode()
    numbers = [int(line.split()[1]) for line in log.splitlines() if line.startswith("tick ") and line[5:].isdigit()]
    assert numbers == list(range(1, len(numbers) + 1)), "no tick is lost or there twice"


@pytest.mark.parametrize("signal_of_agent", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_lease_holds_when_the_agent_dies_or_hangs(tmp_path: Path, signal_of_agent: int) -> None:
    """Then it is not renewed."""
    bench = QemuBench(tmp_path)
    keeper = bench.harness.keeper("--agent-silence-ms", "600000")
    await bench.connect()
    try:
        bench.driver.lease(now_ms() + 3_000)
        request = run_of(CASES["its lease ends"], bench.harness.work)
        bench.driver.start(msgspec.structs.replace(request, machine=bench.machine("sleep 1000")))
        await bench.until(lambda: any(isinstance(event, PowerChanged) for event in bench.events))
        agent = int(Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()[0])
        os.kill(agent, signal_of_agent)
        await bench.until(lambda: any(isinstance(event, Ended) for event in bench.events))
        assert outcome(bench.events[-1]) == ("lease", None, 9, 0)
    finally:
        bench.close()
