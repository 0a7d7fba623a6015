"""Holds on the leader: deletions under way are waited for, sets stay while they are used, and all of it is bounded."""

import asyncio

import pytest

from roost.blobs.factory import memory_blobs
from roost.blobs.garbage import GarbageCollector
from roost.model.errors import NoService
from roost.ports.blobs import digest_of
from roost.server.files import store
from roost.server.files.sent import SentBytes
from roost.server.files.store import Files, ProjectFiles

ONE, TWO = digest_of(b"one"), digest_of(b"two")


class Time:
    now_ms = 1_000


def project(time: Time, *going: str) -> ProjectFiles:
    garbage = GarbageCollector(time.now_ms, going)
    return ProjectFiles(memory_blobs(), "default", garbage, nothing_sent(), lambda: time.now_ms)


def nothing_sent() -> SentBytes:
    return SentBytes(lambda project, files: False, 1_000)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_hold_waits_until_a_deletion_of_its_digests_has_ended() -> None:
    files = project(Time(), ONE, TWO)
    holding = asyncio.ensure_future(files.hold("ann", [ONE]))
    await turns()
    files.deleted(TWO)
    await turns()
    assert not holding.done()
    files.deleted(ONE)
    await holding
    await files.hold("ann", [digest_of(b"other")])


async def test_a_set_waits_for_all_deletions_because_its_contents_are_unknown() -> None:
    files = project(Time(), TWO)

    async def use() -> None:
        async with files.held_set(ONE):
            pass

    using = asyncio.ensure_future(use())
    await turns()
    assert not using.done() and set(files.held_sets()) == {ONE}, "it is held before it waits"
    files.deleted(TWO)
    await using


async def test_a_deletion_that_does_not_end_is_not_waited_for_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "DELETED_S_MAX", 0.01)
    with pytest.raises(NoService, match="being deleted"):
        await project(Time(), ONE).hold("ann", [ONE])


async def test_a_set_is_held_while_one_of_its_users_is_there_and_as_long_as_was_asked() -> None:
    time = Time()
    files = project(time)
    async with files.held_set(ONE):
        async with files.held_set(ONE, keep_ms=500):
            pass
        time.now_ms += 10_000
        assert set(files.held_sets()) == {ONE}, "the first user is still there"
    assert set(files.held_sets()) == set()
    async with files.held_set(TWO, keep_ms=500):
        pass
    time.now_ms += 499
    assert set(files.held_sets()) == {TWO}
    time.now_ms += 1
    assert set(files.held_sets()) == set()


async def test_holds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SETS_MAX", 1)
    files = project(Time())
    async with files.held_set(ONE), files.held_set(ONE):
        with pytest.raises(NoService, match="too many files"):
            async with files.held_set(TWO):
                pass
    async with files.held_set(TWO):
        pass
    monkeypatch.setattr(store, "HOLDS_MAX", 1)
    every = Files(memory_blobs(), lambda: 0, lambda: 1)
    await every.project("a").hold("ann", [ONE, TWO])
    with pytest.raises(NoService, match="too many files"):
        every.project("b")
