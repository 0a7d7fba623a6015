"""Runs that wait for each other: the process driver and its twin keep the same rules, also without an agent."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from roost.drivers.fake import FakeDriver, ScriptedAct
from roost.drivers.process import ProcessDriver
from roost.ports.driver import (
    Driver,
    Ended,
    Event,
    KnownRun,
    KnownRuns,
    RunRequest,
    Started,
    StartRefused,
    StepCommand,
    StopReason,
)
from tests.keeper.keeper_harness import DEADLINE_S, KeeperHarness, now_ms

SHORT, FOREVER = ScriptedAct(), ScriptedAct(after_ms=None)


class Bench(Protocol):
    """A driver, what it was ordered, and time."""

    driver: Driver
    reported: list[Event]
    work: Path

    def now(self) -> int: ...

    async def until(self, holds: Callable[[], Any]) -> None:
        """Let time pass until something holds."""

    async def reconnect(self, absent_until: Callable[[], Any] | None = None) -> dict[str, KnownRun]:
        """The agent goes, something happens without an agent, and a new one learns what there is."""


class Twin:
    def __init__(self, acts: dict[str, ScriptedAct]) -> None:
        self.reported: list[Event] = []
        self.driver = FakeDriver(self.reported.append, lambda run: [acts[run.id]], now=1_000)
        self.work = Path("/nowhere")

    def now(self) -> int:
        return self.driver.now

    async def until(self, holds: Callable[[], Any]) -> None:
        deadline = self.driver.now + 60_000
        while not holds():
            assert self.driver.now < deadline, self.reported
            self.driver.advance(self.driver.now + 1)

    async def reconnect(self, absent_until: Callable[[], Any] | None = None) -> dict[str, KnownRun]:
        self.driver._tell = None
        if absent_until is not None:
            await self.until(lambda: {run.id: run for run in self.driver.connect().runs}["c"].ended)
        self.driver._tell = self.reported.append
        return {run.id: run for run in self.driver.connect().runs}


class Real:
    def __init__(self, harness: KeeperHarness) -> None:
        self.reported: list[Event] = []
        self.harness = harness
        self.work = harness.work
        self.driver = ProcessDriver(self.reported.append, lambda: None)

    async def connect(self) -> None:
        await self.driver.connect(f"{self.harness.dir}/keeper.sock")
        await self.until(lambda: any(isinstance(item, KnownRuns) for item in self.reported))

    def now(self) -> int:
        return now_ms()

    async def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, self.reported
            await asyncio.sleep(0.003)

    async def reconnect(self, absent_until: Callable[[], Any] | None = None) -> dict[str, KnownRun]:
        self.driver.stop("nobody", 0, StopReason.ORDERED)  # what is ordered before is followed when this is refused
        await self.until(lambda: any(isinstance(item, StartRefused) for item in self.reported))
        before = [item for item in self.reported if not isinstance(item, StartRefused)]
        if absent_until is not None:
            self.driver.close()
            await self.until(absent_until)
        self.reported = []
        self.driver = ProcessDriver(self.reported.append, lambda: None)
        await self.connect()
        first = self.reported.pop(0)
        assert isinstance(first, KnownRuns)
        self.reported[:0] = before
        return {run.id: run for run in first.runs}


@pytest.fixture(params=["twin", "real"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param == "twin":
        yield Twin(ACTS)
        return
    harness = KeeperHarness(tmp_path)
    harness.keeper()
    real = Real(harness)
    await real.connect()
    real.reported.clear()
    yield real
    real.driver.close()
    harness.close()


#: What each run does by its name: the first three run until they are stopped, the last three end at once.
ACTS = {
    "a": FOREVER,
    "b": FOREVER,
    "c": FOREVER,
    "x": SHORT,
    "y": SHORT,
    "z": SHORT,
    "missing": ScriptedAct(error="there is none"),
}


def start(bench: Bench, id: str, after: str = "", **more: Any) -> None:
    command = "while :; do sleep 0.01; done" if ACTS[id] is FOREVER else ":"
    argv = ["/bin/sh", "-c", f"echo {id} >> {bench.work}/order; {command}"]
    argv = ["/no/such/program"] if ACTS[id].error else argv
    settings = {"leased": False, "note": f"note of {id}"} | more
    bench.driver.start(
        RunRequest(
            id, [StepCommand(argv)], {}, str(bench.work / id), str(bench.work / f"{id}.log"), after=after, **settings
        )
    )


def story(bench: Bench) -> list[str]:
    """What began and ended, in order."""
    kinds = {Started: "began", Ended: "ended"}
    return [f"{item.id} {kinds[type(item)]}" for item in bench.reported if isinstance(item, Started | Ended)]


def tells(bench: Bench, *message: str) -> Callable[[], bool]:
    return lambda: set(message) <= set(story(bench))


def end_of(bench: Bench, id: str) -> Ended:
    return next(item for item in bench.reported if isinstance(item, Ended) and item.id == id)


async def test_a_run_waits_for_another_and_begins_when_that_has_ended(bench: Bench) -> None:
    start(bench, "a")
    start(bench, "x", after="a")
    await bench.until(tells(bench, "a began"))
    existing = await bench.reconnect()
    assert [
        (other_known.id, other_known.state, bool(other_known.started_at), bool(other_known.pid))
        for other_known in existing.values()
    ] == [
        ("a", "running", True, True),
        ("x", "waiting", False, False),
    ]
    assert existing["x"].note == "note of x"
    bench.driver.stop("a", 0, StopReason.ORDERED)
    await bench.until(tells(bench, "x ended"))
    assert story(bench) == ["a began", "a ended", "x began", "x ended"]
    assert (end_of(bench, "x").cause, end_of(bench, "x").code) == ("exited", 0)


async def test_a_run_begins_at_once_when_the_other_is_not_known_or_has_ended(bench: Bench) -> None:
    start(bench, "x", after="nobody")
    await bench.until(tells(bench, "x ended"))
    start(bench, "y", after="x")
    await bench.until(tells(bench, "y ended"))
    bench.driver.forget("x")
    start(bench, "z", after="x")
    await bench.until(tells(bench, "z ended"))


async def test_a_run_that_is_to_wait_for_itself_does_not(bench: Bench) -> None:
    start(bench, "x", after="x")
    await bench.until(tells(bench, "x ended"))


async def test_short_runs_go_one_after_the_other(bench: Bench) -> None:
    start(bench, "a")
    for id, after in (("x", "a"), ("y", "x"), ("z", "y")):
        start(bench, id, after)
    bench.driver.stop("a", 0, StopReason.ORDERED)
    await bench.until(tells(bench, "z ended"))
    assert story(bench)[2:] == ["x began", "x ended", "y began", "y ended", "z began", "z ended"]


async def test_a_run_that_fails_to_start_lets_the_next_one_begin(bench: Bench) -> None:
    start(bench, "a")
    start(bench, "missing", after="a")
    start(bench, "z", after="missing")
    bench.driver.stop("a", 0, StopReason.ORDERED)
    await bench.until(tells(bench, "z ended"))
    assert story(bench) == ["a began", "a ended", "missing ended", "z began", "z ended"]
    assert end_of(bench, "missing").cause == "error"


async def test_one_that_is_stopped_before_it_began_leaves_its_place_to_the_next(bench: Bench) -> None:
    start(bench, "a")
    start(bench, "b", after="a")
    start(bench, "x", after="b")
    bench.driver.stop("b", 5_000, StopReason.DROPPED, "not wanted")
    await bench.until(tells(bench, "b ended"))
    ended = end_of(bench, "b")
    assert (ended.cause, ended.code, ended.signal, ended.why, ended.detail) == (
        "stopped",
        None,
        None,
        "dropped",
        "not wanted",
    )
    existing = await bench.reconnect()
    assert [existing[id].state for id in "abx"] == ["running", "ended", "waiting"]
    assert (existing["b"].started_at, existing["x"].after) == (0, "a")
    bench.driver.stop("a", 0, StopReason.ORDERED)
    await bench.until(tells(bench, "x ended"))
    assert story(bench) == ["a began", "b ended", "a ended", "x began", "x ended"]


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_run_behind_one_that_never_began_waits_for_the_run_before_that(bench: Bench, forgotten: bool) -> None:
    start(bench, "a")
    start(bench, "b", after="a")
    bench.driver.stop("b", 0, StopReason.ORDERED)
    await bench.until(tells(bench, "b ended"))
    start(bench, "x", after="b")
    if forgotten:
        bench.driver.forget("b")
    assert (await bench.reconnect())["x"].state == "waiting"
    bench.driver.stop("a", 0, StopReason.ORDERED)
    await bench.until(tells(bench, "x ended"))
    assert story(bench).index("a ended") < story(bench).index("x began")


async def test_the_lease_ends_also_pending_runs_and_a_run_that_has_none_goes_on_waiting(bench: Bench) -> None:
    bench.driver.lease(bench.now() + 60_000)
    start(bench, "a")
    start(bench, "b", after="a", leased=True)
    start(bench, "x", after="b")
    await bench.until(tells(bench, "a began"))
    bench.driver.lease(bench.now() - 1)
    await bench.until(tells(bench, "b ended"))
    assert end_of(bench, "b").cause == "lease"
    existing = await bench.reconnect()
    assert (existing["a"].state, existing["x"].state) == ("running", "waiting")
    bench.driver.stop("a", 0, StopReason.ORDERED)
    await bench.until(tells(bench, "x ended"))
    assert "b began" not in story(bench)


async def test_a_lease_that_ends_with_all_of_a_chain_begins_no_run(bench: Bench) -> None:
    bench.driver.lease(bench.now() + 60_000)
    for id, after in (("a", ""), ("b", "a"), ("c", "b")):
        start(bench, id, after, leased=True)
    await bench.until(tells(bench, "a began"))
    bench.driver.lease(bench.now() - 1)
    await bench.until(tells(bench, "a ended", "b ended", "c ended"))
    assert [end_of(bench, id).cause for id in "abc"] == ["lease"] * 3
    assert not {"b began", "c began"} & set(story(bench))


async def test_a_timeout_counts_from_the_real_start(bench: Bench) -> None:
    start(bench, "a")
    start(bench, "b", after="a", timeout_ms=200)
    await bench.until(tells(bench, "a began"))
    waits_until = bench.now() + 300
    await bench.until(lambda: bench.now() >= waits_until)
    bench.driver.stop("a", 0, StopReason.ORDERED)
    await bench.until(tells(bench, "b ended"))
    began = next(item.at for item in bench.reported if isinstance(item, Started) and item.id == "b")
    assert end_of(bench, "b").cause == "timed_out"
    assert end_of(bench, "b").at - began >= 200


async def test_a_chain_goes_on_while_there_is_no_agent(bench: Bench) -> None:
    start(bench, "a", timeout_ms=300, grace_ms=0)
    start(bench, "x", after="a")
    start(bench, "c", after="x", timeout_ms=1_000, grace_ms=0)
    await bench.until(tells(bench, "a began"))
    order = bench.work / "order"
    await bench.reconnect(absent_until=lambda: order.exists() and order.read_text().split()[-1:] == ["c"])
    while (existing := await bench.reconnect())["c"].ended is None:
        await bench.until(lambda: True)
    ended = [existing[id].ended for id in "axc"]
    assert [other_ended and other_ended.cause for other_ended in ended] == ["timed_out", "exited", "timed_out"]
    assert existing["a"].started_at < existing["x"].started_at <= existing["c"].started_at
