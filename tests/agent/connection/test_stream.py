"""The link, where its stream and the wish to end it meet."""

import asyncio
from pathlib import Path

import pytest

from roost.agent.actor import Actor
from roost.agent.connection.identity import NodeIdentity
from roost.agent.connection.stream import AgentStream, Call, now_ms
from roost.agent.machine import AgentMachine
from roost.model.records.node import Facts
from tests.certified import node_bundle

END_S_MAX = 5.0


async def test_a_stream_that_breaks_as_we_are_ordered_to_end_does_not_keep_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_stream = asyncio.Event()

    async def breaks_when_cancelled() -> None:
        open_stream.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the stream broke just then") from None

    async def converse(self: AgentStream, call: Call, frames: object) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(breaks_when_cancelled())
            await asyncio.Event().wait()

    monkeypatch.setattr(AgentStream, "_converse", converse)
    NodeIdentity(str(tmp_path)).write(node_bundle("n"))
    machine = AgentMachine(Actor("n", "id", Facts({})), "127.0.0.1:1", str(tmp_path), "", lambda: 0.0, now_ms())
    link = AgentStream(
        machine, NodeIdentity(str(tmp_path)), lambda effects: [link.perform(item) for item in effects], lambda: None
    )
    running = asyncio.ensure_future(link.run())
    await open_stream.wait()
    running.cancel()
    done, _ = await asyncio.wait((running,), timeout=END_S_MAX)
    assert done == {running} and running.cancelled()
