"""A store of a later release is refused by a server, whatever kind of store it is, and nothing in it changes."""

import asyncio
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from roost_lab.components.postgres import Postgres, running

from roost import __version__
from roost.core.state.records import FORMAT, Settings
from roost.ports.store import Change, SharedStore, Snapshot, Store, StoreError, require
from roost.server.cluster.election import LeaderTiming, ServerIdentity
from roost.server.cluster.leadership import Leadership
from roost.server.engine.engine import Clock, Engine
from roost.stores.copy import fill
from roost.stores.factory import open_store
from roost.stores.memory import Memory, MemoryStore
from tests.components.etcd import shared_cluster
from tests.core.test_formats import changed
from tests.server.cluster.test_leadership import Seen

NUMBERS = itertools.count()
DEADLINE_S = 30
LATER = changed("meta", format=FORMAT + 1)


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "postgresql", "etcd"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each kind that a later release has written."""
    match request.param:
        case "memory":
            memory = Memory()
            require(memory.lead("later release"))
            require(memory.apply(1, LATER))
            return MemoryStore(memory)
        case "sqlite":
            url = f"sqlite:{tmp_path}"
        case "postgresql":
            url = f"{request.getfixturevalue('database').dsn}?schema=later_{next(NUMBERS)}"
        case _:
            url = f"etcd://{','.join(shared_cluster().endpoints)}/later-{os.getpid()}-{next(NUMBERS)}"
    await fill(url, LATER, 7, lambda done, total: None)
    return open_store(url)


async def test_a_store_of_a_later_release_is_refused(store: Store) -> None:
    identity = ServerIdentity("one", "life", "", "one:1")
    clock = Clock()
    team = Leadership(store, identity, LeaderTiming(), clock.now_ms) if isinstance(store, SharedStore) else None
    before = await content(store)
    engine = Engine(store, Settings(), Seen(), clock, leadership=team)
    assert (
        f"have format {FORMAT + 1}, by roost {__version__}; this is roost {__version__} and reads format {FORMAT}"
        in await refusal(engine)
    )
    assert not engine.ready
    assert await content(store) == before
    await store.close()


async def refusal(engine: Engine) -> str:
    """Why a server does not begin: at its start, or as one of several in place of leading."""
    try:
        await engine.open("one")
    except StoreError as error:
        return str(error)
    serving = asyncio.ensure_future(engine.run())
    async with asyncio.timeout(DEADLINE_S):
        while "format" not in engine.failed:
            await asyncio.sleep(0.01)
    serving.cancel()
    await asyncio.wait({serving})
    return engine.failed


async def content(store: Store) -> list[Change]:
    found = await store.load()
    assert isinstance(found, Snapshot)
    return sorted(found.records)
