"""The link, where its stream and the wish to end it meet."""

import asyncio
from pathlib import Path

import pytest

from roost.agent.actor import Actor
from roost.agent.identity import Identity
from roost.agent.link import Call, Link
from roost.model.node import Facts
from tests.certified import node_bundle

END_S_MAX = 5.0


async def test_a_stream_that_breaks_as_we_are_told_to_end_does_not_keep_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_stream = asyncio.Event()

    async def breaks_when_cancelled() -> None:
        open_stream.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the stream broke just then") from None

    async def session(self: Link, call: Call) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(breaks_when_cancelled())
            await asyncio.Event().wait()

    monkeypatch.setattr(Link, "_session", session)
    Identity(str(tmp_path)).write(node_bundle("n"))
    link = Link(
        "127.0.0.1:1", Identity(str(tmp_path)), Actor("n", "id", Facts({})), lambda _: None, lambda: None, lambda: None
    )
    running = asyncio.ensure_future(link.run())
    await open_stream.wait()
    running.cancel()
    done, _ = await asyncio.wait((running,), timeout=END_S_MAX)
    assert done == {running} and running.cancelled()
