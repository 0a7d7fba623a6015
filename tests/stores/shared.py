"""What stores promise that several servers use at once. Two stores opened at one place are two servers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from roost.ports.store import (
    ANYBODY,
    Behind,
    Change,
    Fenced,
    Lead,
    LoadFailure,
    News,
    SharedStore,
    Unavailable,
    require,
)
from tests.stores.contract import (
    Opener,
    StoreContract,
    apply,
    as_dict,
    gone,
    must,
    outcomes_of,
    put,
    refusal,
)

PATIENCE_S = 20.0  # real servers on a busy machine; nothing here waits unless it fails


async def reported(update: AsyncIterator[News | Behind | LoadFailure]) -> News:
    async with asyncio.timeout(PATIENCE_S):
        return require(await anext(update))


async def reported_until(update: AsyncIterator[News], revision: int) -> list[News]:
    received = [await reported(update)]
    while received[-1].revision < revision:
        received.append(await reported(update))
    return received


async def led(update: AsyncIterator[News], epoch: int, *, successor: str = "", beat: int = 0) -> Lead:
    """Wait until the lead is as given."""
    while True:
        lead = (await reported(update)).lead
        if lead.epoch == epoch and lead.successor == successor and lead.renewals >= beat:
            return lead


class SharedStoreContract(StoreContract):
    @pytest.fixture
    async def other(self, opener: Opener) -> AsyncIterator[SharedStore]:
        other = opener()
        assert isinstance(other, SharedStore)
        yield other
        await other.close()

    @pytest.fixture
    async def shared(self, store: SharedStore) -> SharedStore:
        assert isinstance(store, SharedStore)
        return store

    async def test_a_follower_learns_the_leader_at_once(self, shared: SharedStore, other: SharedStore) -> None:
        assert (await reported(other.follow(0))).lead.epoch == 0
        epoch = await must(shared).lead("server-1")
        first = await reported(other.follow(0))
        assert (first.revision, list(first.changes), first.lead.epoch) == (0, [], epoch)
        assert first.lead.identity == "server-1" and first.lead.successor == ""

    async def test_a_follower_gets_every_commit_whole_and_in_order(
        self, shared: SharedStore, other: SharedStore
    ) -> None:
        epoch = await must(shared).lead("server-1")
        await must(shared).commit(epoch, [put("before")])
        changes = other.follow(1)
        await reported(changes)
        commits = [[put(str(number), b"%d" % number), put("same", b"%d" % number)] for number in range(50)]
        commits += [[gone("7"), gone("never")], []]
        for commit in commits:
            await must(shared).commit(epoch, commit)
        received = await reported_until(changes, 1 + len(commits))
        records = {("instance", "before"): b"value"}
        revision = 1
        for update in received:
            assert update.revision >= revision
            apply(records, list(update.changes))
            revision = update.revision
            expected = {("instance", "before"): b"value"}
            for commit in commits[: revision - 1]:
                apply(expected, commit)
            assert records == expected, f"as of revision {revision}"
        assert records == as_dict(await must(other).load())

    async def test_a_large_commit_is_reported_whole_and_loaded_whole(
        self, shared: SharedStore, other: SharedStore
    ) -> None:
        epoch = await must(shared).lead("server-1")
        changes = other.follow(0)
        await reported(changes)
        everything = [put(str(number), b"%d" % number * 20) for number in range(3_000)]
        committing = asyncio.ensure_future(must(shared).commit(epoch, everything))
        while not committing.done():
            await asyncio.sleep(0)
            assert len((await must(other).load()).records) in (0, 3_000)
        received = await reported_until(changes, 1)
        assert [len(update.changes) for update in received if update.changes] == [3_000]
        assert as_dict(await must(other).load()) == {change.record: change.value for change in everything}

    async def test_following_begins_at_the_given_revision(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await must(shared).lead("server-1")
        for number in range(5):
            await must(shared).commit(epoch, [put(str(number))])
        received = await reported_until(other.follow(3), 5)
        assert [change.key for update in received for change in update.changes] == ["3", "4"]

    async def test_a_revision_that_is_not_there_yet_is_behind(self, shared: SharedStore, other: SharedStore) -> None:
        await must(shared).commit(await must(shared).lead("server-1"), [put("1")])
        assert isinstance(await refusal(reported(other.follow(7))), Behind)

    async def test_renewing_is_seen_and_changes_no_revision(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await must(shared).lead("server-1")
        update = other.follow(0)
        before = (await reported(update)).lead
        await must(shared).renew(epoch)
        assert (await led(update, epoch, beat=before.renewals + 1)).identity == "server-1"
        await must(shared).renew(epoch)
        assert (await led(update, epoch, beat=before.renewals + 2)).identity == "server-1"
        assert (await must(other).load()).revision == 0

    async def test_letting_go_is_seen_with_the_heir(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await must(shared).lead("server-1")
        update = other.follow(0)
        await must(shared).renew(epoch, "server-2")
        assert (await led(update, epoch, successor="server-2")).identity == "server-1"
        await must(shared).renew(epoch, ANYBODY)
        lead = await led(update, epoch, successor=ANYBODY)
        new = await must(other).lead("server-2", lead)
        assert new > epoch
        assert isinstance(await refusal(must(shared).renew(epoch)), Fenced)
        assert (await led(update, new)).identity == "server-2"

    async def test_a_lead_that_moved_since_it_was_seen_is_not_taken(
        self, shared: SharedStore, other: SharedStore
    ) -> None:
        epoch = await must(shared).lead("server-1")
        seen = (await reported(other.follow(0))).lead
        await must(shared).renew(epoch)
        assert isinstance(await refusal(must(other).lead("server-2", seen)), Fenced)
        assert await must(shared).commit(epoch, [put("1")]) == 1
        assert isinstance(await refusal(must(other).lead("server-2", Lead())), Fenced)

    async def test_of_many_that_saw_the_same_one_leads(self, opener: Opener) -> None:
        stores = [opener() for _ in range(4)]
        seen = (await reported(stores[0].follow(0))).lead
        attempts = [must(store).lead(f"server-{number}", seen) for number, store in enumerate(stores)]
        outcomes = await outcomes_of(*attempts)
        assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 3
        winner = next(number for number, outcome in enumerate(outcomes) if isinstance(outcome, int))
        assert (await reported(stores[0].follow(0))).lead.identity == f"server-{winner}"
        for store in stores:
            await store.close()

    async def test_a_leader_is_fenced_by_another_server(self, shared: SharedStore, other: SharedStore) -> None:
        old = await must(shared).lead("server-1")
        await must(shared).commit(old, [put("1")])
        new = await must(other).lead("server-2")
        attempts = [
            must(shared).commit(old, [put("1", b"stale")]),
            must(shared).renew(old),
            must(shared).commit(old, []),
        ]
        for outcome in await outcomes_of(*attempts):
            assert isinstance(outcome, Fenced)
        assert await must(other).commit(new, [put("2")]) == 2
        assert as_dict(await must(shared).load()).keys() == {("instance", "1"), ("instance", "2")}
        again = await must(shared).lead("server-1")
        assert again > new
        assert await must(shared).commit(again, [put("3")]) == 3

    async def test_two_that_commit_at_once_never_both_succeed(self, shared: SharedStore, other: SharedStore) -> None:
        old = await must(shared).lead("server-1")
        stale = [must(shared).commit(old, [Change("instance", "who", b"old")]) for _ in range(20)]
        attempts = [asyncio.ensure_future(coroutine) for coroutine in stale]
        new = await must(other).lead("server-2")
        await must(other).commit(new, [Change("instance", "who", b"new")])
        outcomes = await outcomes_of(*attempts)
        assert all(isinstance(outcome, int | Fenced) for outcome in outcomes), outcomes
        assert as_dict(await must(shared).load())["instance", "who"] == b"new"
        taken = sum(isinstance(outcome, int) for outcome in outcomes)
        assert (await must(other).load()).revision == taken + 1

    async def test_a_server_that_stops_following_costs_nothing(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await must(shared).lead("server-1")
        for _ in range(20):
            update = other.follow(0)
            await reported(update)
            await update.aclose()  # type: ignore[attr-defined]
        assert await must(shared).commit(epoch, [put("1")]) == 1

    async def test_a_closed_store_tells_its_followers(self, shared: SharedStore) -> None:
        update = shared.follow(0)
        await reported(update)
        waiting = asyncio.ensure_future(reported(update))
        await asyncio.sleep(0)
        await shared.close()
        assert isinstance(await refusal(waiting), Unavailable | StopAsyncIteration)
        assert isinstance(await refusal(must(shared).renew(1)), Unavailable)
