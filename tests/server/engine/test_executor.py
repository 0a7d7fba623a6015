"""Perform: what is durable is acted on, and an effect that fails stops no other effect."""

import asyncio

import pytest

from roost.core.state.outcome import IgnoredReport, Orders, Placed, Step
from roost.core.state.state import State
from roost.model.protocol import Drop
from roost.model.reasons.nodes import HeartbeatsMissing, NodeRegistered
from roost.model.records.transition import NodeTransition, NodeTransitioned
from roost.model.states import NodeStatus
from roost.ports.store import Change
from roost.server.engine import executor
from roost.server.engine.executor import Executor
from roost.server.feed.change_log import Watch
from roost.server.observability.logging import LINES_MAX
from tests.server.inprocess_server import Streams, inprocess_server


class Dropped:
    """Logs that remember what was dropped."""

    def __init__(self) -> None:
        self.prefixes: list[str] = []

    def drop(self, prefix: str) -> None:
        self.prefixes.append(prefix)


def performing(streams: Streams | None = None) -> tuple[Executor, Streams, Dropped]:
    logs = Dropped()
    perform = Executor(Watch(), logs)
    streams = streams or Streams()
    perform.streams = streams
    return perform, streams, logs


def orders(node: str) -> Orders:
    return Orders(node, 1, 0, 1, False, (Drop(1),))


async def test_orders_acknowledgements_and_dropped_logs_go_where_they_belong() -> None:
    perform, streams, logs = performing()
    done = Step()
    done.assignments = [orders("n1"), orders("n2")]
    done.acknowledged = {"n1": 7}
    done.swept = ["default/a/1", "default/b/2"]
    await perform.act(State(), done)
    assert [orders.node for orders in streams.sent] == ["n1", "n2"]
    assert streams.acknowledged == {"n1": 7}
    assert logs.prefixes == ["default/a/1", "default/b/2"]
    assert (streams.closed, streams.resets, perform.failed) == ([], 0, 0)


async def test_a_stream_that_cannot_take_orders_is_closed_and_the_others_get_theirs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Broken(Streams):
        def send(self, orders: Orders) -> None:
            if orders.node == "n1":
                raise ValueError("a defect")
            super().send(orders)

    perform, streams, _ = performing(Broken())
    done = Step()
    done.assignments = [orders("n1"), orders("n2")]
    await perform.act(State(), done)
    assert [orders.node for orders in streams.sent] == ["n2"]
    assert streams.closed == ["n1"] and perform.failed == 1
    assert "a defect" in capsys.readouterr().out


async def test_placements_are_reported_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    perform, _, _ = performing()
    done = Step()
    done.placed = [Placed("default/a.0", "n1", "best_fit", (("cpu", 1_500, 4_000), ("memory", 1 << 30, 4 << 30)))]
    await perform.act(State(), done)
    assert "placed default/a.0 on n1 by best_fit: cpu 1.5/4, memory 1GiB/4GiB" in capsys.readouterr().out
    assert perform.placements == {"best_fit": 1}


async def test_many_placements_are_logged_in_several_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LINES_AT_ONCE", 2)
    perform, _, _ = performing()
    seen: list[int] = []

    def watch() -> None:
        seen.append(perform.placements.total())
        asyncio.get_running_loop().call_soon(watch)

    asyncio.get_running_loop().call_soon(watch)
    done = Step()
    done.placed = [Placed(f"default/a.{index}", "n1", "best_fit", ()) for index in range(6)]
    await perform.act(State(), done)
    assert {2, 4, 6} <= set(seen)


async def test_ignored_reports_are_counted_but_reported_only_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    perform, _, _ = performing()
    for _ in range(20):
        done = Step()
        done.ignored = [IgnoredReport("n1", "not_its_attempt", number) for number in range(5)]
        await perform.act(State(), done)
    assert perform.ignored == 100
    assert capsys.readouterr().out.count("report ignored") == LINES_MAX


async def test_the_stream_of_a_lost_node_is_closed_unless_it_is_back_already() -> None:
    async with inprocess_server(lease_ms=200, lease_margin_ms=50) as made:
        agent = await made.agent()
        await agent.parts()
        await made.until(lambda: made.streams.closed == ["n1"])
        assert made.engine.state.nodes["n1"].status == "lost"
        done = Step()
        lost = NodeTransition(1, NodeStatus.SUSPECT, NodeStatus.LOST, HeartbeatsMissing(200), 1)
        back = NodeTransition(1, NodeStatus.LOST, NodeStatus.READY, NodeRegistered(), 1)
        done.transitions = [NodeTransitioned("n1", lost), NodeTransitioned("n1", back)]
        await agent.hello()
        await made.perform.act(made.engine.state, done)
        assert made.streams.closed == ["n1"]


async def test_a_reset_ends_all_streams_and_sends_watchers_to_list_again() -> None:
    perform, streams, _ = performing()
    await perform.act(State(), Step())
    perform.reset()
    assert streams.resets == 1


async def test_a_large_commit_is_acted_on_in_several_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LARGE_CHANGES", 2)
    perform, _, _ = performing()
    turns = 0

    def turned() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turned)

    turned()
    for size, expected in ((2, 1), (3, 6), (8, 13)):
        done = Step()
        done.changes = [Change("project", f"p{number}", None) for number in range(size)]
        await perform.act(State(), done)
        assert turns == expected
    assert perform.failed == 0
