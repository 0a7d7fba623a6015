"""The process driver and its twin in memory: the same orders lead to the same events; and the wire between."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from roost.drivers import process
from roost.drivers.fake import FakeDriver, ScriptedAct
from roost.drivers.process import ProcessDriver
from roost.ports.driver import (
    Driver,
    Ended,
    Event,
    KnownRuns,
    RunRequest,
    Started,
    StartRefused,
    StepBegan,
    StepCommand,
    StopReason,
)
from tests.keeper.keeper_harness import DEADLINE_S, KeeperHarness, now_ms

FOREVER = ScriptedAct(after_ms=None)
DEAF = ScriptedAct(after_ms=None, term_ms=None)


class Case(NamedTuple):
    """What is run, what is ordered when (milliseconds), and what happens in the end."""

    acts: list[ScriptedAct]
    expected: list[tuple[object, ...]]
    ignore: tuple[int, ...] = ()
    orders: dict[int, Callable[[Driver, int], None]] = {}
    run: dict[str, object] = {}
    lease_ms: int = 0


def stop(grace_ms: int, why: StopReason = StopReason.ORDERED) -> Callable[[Driver, int], None]:
    return lambda driver, now: driver.stop("a", grace_ms, why)


def renew(ms: int) -> Callable[[Driver, int], None]:
    return lambda driver, now: driver.lease(now + ms)


CASES = {
    "ends well": Case([ScriptedAct()], ["started", ("exited", 0, None, 0)]),
    "fails": Case([ScriptedAct(code=3)], ["started", ("exited", 3, None, 0)]),
    "dies": Case([ScriptedAct(signal=11)], ["started", ("exited", None, 11, 0)]),
    "cannot be started": Case([ScriptedAct(error="x")], [("error", None, None, 0)]),
    "steps": Case(
        [ScriptedAct(), ScriptedAct(code=2), ScriptedAct()],
        ["started", ("step", 0, None), ("step", 1, 0), ("exited", 2, None, 1, [0, 2])],
    ),
    "failures that are ignored": Case(
        [ScriptedAct(code=2), ScriptedAct(error="x"), ScriptedAct(signal=9), ScriptedAct(), ScriptedAct(code=4)],
        [
            *("started", ("step", 0, None), ("step", 2, 127), ("step", 3, -9), ("step", 4, 0)),
            ("exited", 0, None, 4, [2, 127, -9, 0, 4]),
        ],
        ignore=(0, 1, 2, 4),
    ),
    "one failure that is ignored": Case([ScriptedAct(code=2)], ["started", ("exited", 0, None, 0, [2])], ignore=(0,)),
    "takes too long": Case([FOREVER], ["started", ("timed_out", None, 15, 0)], run={"timeout_ms": 100}),
    "takes too long and does not listen": Case(
        [ScriptedAct(), DEAF],
        ["started", ("step", 0, None), ("step", 1, 0), ("timed_out", None, 9, 1, [0, -9])],
        run={"timeout_ms": 500, "grace_ms": 100},
    ),
    "is stopped": Case([FOREVER], ["started", ("stopped", None, 15, 0, "ordered")], orders={100: stop(5_000)}),
    "is stopped and says so": Case(
        [ScriptedAct(after_ms=None, term_ms=50, term_code=7), ScriptedAct()],
        ["started", ("step", 0, None), ("stopped", 7, None, 0, [7], "ordered")],
        orders={150: stop(5_000), 160: stop(4_000, StopReason.UNHEALTHY)},
    ),
    "is stopped and does not listen": Case(
        [DEAF], ["started", ("stopped", None, 9, 0, "ordered")], orders={150: stop(100)}
    ),
    "is stopped at once": Case(
        [DEAF], ["started", ("stopped", None, 9, 0, "dropped")], orders={150: stop(0, StopReason.DROPPED)}
    ),
    "has no lease": Case([ScriptedAct()], [("lease", None, None, 0)], run={"leased": True}),
    "its lease ends": Case([DEAF], ["started", ("lease", None, 9, 0)], run={"leased": True}, lease_ms=250),
    "its lease is renewed": Case(
        [ScriptedAct(after_ms=1_300, code=5)],
        ["started", ("exited", 5, None, 0)],
        run={"leased": True},
        lease_ms=1_000,
        orders={200: renew(1_000), 400: renew(5_000)},
    ),
    "it is not leased": Case([ScriptedAct(after_ms=400)], ["started", ("exited", 0, None, 0)], lease_ms=100),
    "its lease is taken back while it stops": Case(
        [DEAF],
        ["started", ("stopped", None, 9, 0, "ordered")],
        run={"leased": True},
        lease_ms=60_000,
        orders={200: stop(50_000), 250: renew(-1)},
    ),
    "is ordered twice": Case(
        [ScriptedAct(after_ms=100)],
        ["started", ("exited", 0, None, 0)],
        orders={0: lambda driver, now: driver.start(run_of(CASES["ends well"], Path("/nowhere")))},
    ),
    "is not there": Case(
        [ScriptedAct(after_ms=300)],
        ["started", ("refused", "b", "no such run"), ("refused", "a", "the run has not ended"), ("exited", 0, None, 0)],
        orders={
            100: lambda driver, now: (driver.stop("b", 0, StopReason.ORDERED), driver.forget("b"), driver.forget("a"))[
                0
            ]
        },
    ),
}


def run_of(case: Case, work: Path) -> RunRequest:
    steps = [StepCommand(argv_of(act), index in case.ignore) for index, act in enumerate(case.acts)]
    return RunRequest("a", steps, {}, str(work / "a"), str(work / "a.log"), **{"leased": False, "note": "n"} | case.run)


def argv_of(act: ScriptedAct) -> list[str]:
    """A shell that does what the script of the twin says."""
    if act.error:
        return ["/no/such/program"]
    trap = "trap '' TERM; " if act.term_ms is None else ""
    if act.term_code is not None:
        trap = f"trap 'sleep {(act.term_ms or 0) / 1000}; exit {act.term_code}' TERM; "
    wait = "while :; do sleep 0.01; done" if act.after_ms is None else f"sleep {act.after_ms / 1000}"
    end = f"kill -{act.signal} $$" if act.signal else f"exit {act.code}"
    return ["/bin/sh", "-c", f"{trap}echo ready; {wait}; {end}"]


def plain(event: Event) -> object:
    """What does not depend on pids and times."""
    if isinstance(event, Started):
        return "started"
    if isinstance(event, StepBegan):
        return ("step", event.step, event.before)
    if isinstance(event, StartRefused):
        return ("refused", event.id, event.error)
    assert isinstance(event, Ended), event
    rest = [value for value in (event.codes, event.why) if value]
    return (event.cause, event.code, event.signal, event.step, *rest)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_twin(case: Case) -> None:
    driver = FakeDriver(script=lambda run: case.acts, now=1_000)
    driver.lease(driver.now + case.lease_ms if case.lease_ms else 0)
    driver.start(run_of(case, Path("/nowhere")))
    events: list[Event] = []
    for at, order in case.orders.items():
        events += driver.advance(1_000 + at)
        order(driver, driver.now)
    while (at := driver.next_at()) is not None:
        events += driver.advance(at)
    assert [plain(event) for event in events] == case.expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_real_one(case: Case, harness: KeeperHarness) -> None:
    harness.keeper()
    queue: asyncio.Queue[Event] = asyncio.Queue()
    driver = ProcessDriver(queue.put_nowait, lambda: None)
    await driver.connect(f"{harness.dir}/keeper.sock")
    begun = now_ms()
    driver.lease(begun + case.lease_ms if case.lease_ms else 0)
    driver.start(run_of(case, harness.work))
    if case.orders:
        await eventually(lambda: harness.log("a"))  # it can be asked to end when it has begun to listen
    for at, order in case.orders.items():
        await asyncio.sleep(max(0, begun + at - now_ms()) / 1000)
        order(driver, now_ms())
    first = await asyncio.wait_for(queue.get(), DEADLINE_S)
    assert isinstance(first, KnownRuns)
    events: list[Event] = []
    while len(events) < len(case.expected):
        events.append(await asyncio.wait_for(queue.get(), DEADLINE_S))
    assert [plain(event) for event in events] == case.expected
    driver.close()
    assert queue.empty()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[KeeperHarness]:
    harness = KeeperHarness(tmp_path)
    yield harness
    harness.close()


# the twin alone


@given(some.data())
def test_time_in_small_steps_and_in_one_leap_is_the_same(data: some.DataObject) -> None:
    acts = some.builds(
        ScriptedAct,
        after_ms=some.none() | some.integers(0, 300),
        code=some.sampled_from([0, 0, 1]),
        term_ms=some.none() | some.integers(0, 100),
        error=some.sampled_from(["", "", "", "x"]),
    )
    scripts = data.draw(some.lists(some.lists(acts, min_size=1, max_size=3), min_size=1, max_size=4))
    leased = [data.draw(some.booleans()) for _ in scripts]
    timeouts = [data.draw(some.sampled_from([0, 50, 200])) for _ in scripts]
    lease_ms = data.draw(some.integers(0, 400))

    def play(step: int) -> list[Event]:
        driver = FakeDriver(script=lambda run: scripts[int(run.id)])
        driver.lease(lease_ms)
        for index, script in enumerate(scripts):
            steps = [StepCommand(["x"]) for _ in script]
            driver.start(RunRequest(str(index), steps, {}, "/", "/", timeouts[index], 70, leased=leased[index]))
        events = [event for now in range(0, 1_000, step) for event in driver.advance(now)]
        driver.stop("0", 10, StopReason.ORDERED) if driver.connect().runs[0].ended is None else None
        return events + driver.advance(2_000)

    events = play(1)
    assert events == play(999)
    ended = [event for event in events if isinstance(event, Ended)]
    assert len({event.id for event in ended}) == len(ended)
    assert all(event.at <= lease_ms for event in ended if leased[int(event.id)])
    still = {str(index) for index in range(len(scripts))} - {event.id for event in ended}
    assert not any(leased[int(id)] or timeouts[int(id)] for id in still)


def test_a_new_agent_learns_what_there_is_and_a_lost_node_forgets() -> None:
    driver = FakeDriver(script=lambda run: [FOREVER] if run.id == "b" else [ScriptedAct(code=3)])
    for id in ("a", "b"):
        driver.start(RunRequest(id, [StepCommand(["x"])], {}, "/", "/", leased=False, note=f"note of {id}"))
    driver.advance(5)
    runs = driver.connect().runs
    assert [(run.id, run.state, run.note) for run in runs] == [
        ("a", "ended", "note of a"),
        ("b", "running", "note of b"),
    ]
    assert runs[0].ended is not None and runs[0].ended.code == 3
    driver.forget("a")
    driver.forget("a")
    assert [run.id for run in driver.connect().runs] == ["b"]
    driver.lose()
    assert driver.connect().runs == [] and driver.next_at() is None and driver.advance(99) == []


# the wire


class Peer:
    """A keeper's end of the socket, by hand."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while data := await reader.read(1 << 20):
            self.reads.append(data)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    peer = Peer()
    async with await asyncio.start_unix_server(peer.serve, tmp_path / "keeper.sock"):
        yield peer
        if peer.writer is not None:
            peer.writer.close()


async def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.003)


async def test_orders_of_one_turn_are_one_write_and_silence_is_filled(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PING_S", 0.05)
    driver = ProcessDriver(lambda event: None, lambda: None)
    await driver.connect(str(tmp_path / "keeper.sock"))
    writes: list[bytes] = []
    monkeypatch.setattr(driver._transport, "write", writes.append)
    for id in ("a", "b", "c"):
        driver.start(RunRequest(id, [StepCommand(["true"])], {}, "/d", "/l"))
    driver.forget("x")
    await eventually(lambda: len(writes) >= 3)
    assert writes[0].count(b"\n") == 5 and writes[0].startswith(b'{"do":"ping"}\n{"do":"start","id":"a"')
    assert writes[1:3] == [b'{"do":"ping"}\n'] * 2
    driver.close()
    driver.forget("unheard")
    await eventually(lambda: not driver._out)
    assert b"unheard" not in b"".join(writes)


async def test_words_in_pieces_are_put_together_and_the_end_is_reported_once(peer: Peer, tmp_path: Path) -> None:
    answer: list[Event] = []
    gone: list[bool] = []
    driver = ProcessDriver(answer.append, lambda: gone.append(True))
    await driver.connect(str(tmp_path / "keeper.sock"))
    await eventually(lambda: peer.writer)
    assert peer.writer is not None
    message = (
        b'{"event":"runs","at":1,"lease":2,"runs":[]}\n{"event":"started","id":"\xc3\xbc","pid":3,"at":4,"new":0}\n'
    )
    for index in range(len(message)):
        peer.writer.write(message[index : index + 1])
        await peer.writer.drain()
        await asyncio.sleep(0) if index % 10 else await eventually(lambda: True)
    await eventually(lambda: len(answer) == 2)
    assert answer == [KnownRuns(1, 2), Started("ü", 3, 4)]
    assert not gone
    peer.writer.close()
    await eventually(lambda: gone)
    assert gone == [True]
    driver.close()
    assert gone == [True]
