"""What stores promise that several servers use at once. Two stores opened at one place are two servers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from roost.ports.store import ANYBODY, Behind, Change, Fenced, Lead, News, SharedStore, Unavailable
from tests.stores.contract import Opener, StoreContract, apply, as_dict, gone, put, refusal

PATIENCE_S = 20.0  # real servers on a busy machine; nothing here waits unless it fails


async def told(news: AsyncIterator[News]) -> News:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(news)


async def told_until(news: AsyncIterator[News], revision: int) -> list[News]:
    heard = [await told(news)]
    while heard[-1].revision < revision:
        heard.append(await told(news))
    return heard


async def led(news: AsyncIterator[News], epoch: int, *, heir: str = "", beat: int = 0) -> Lead:
    """Wait until the lead is as said."""
    while True:
        lead = (await told(news)).lead
        if lead.epoch == epoch and lead.heir == heir and lead.beat >= beat:
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

    async def test_a_follower_is_told_at_once_who_leads(self, shared: SharedStore, other: SharedStore) -> None:
        assert (await told(other.follow(0))).lead.epoch == 0
        epoch = await shared.lead("server-1")
        first = await told(other.follow(0))
        assert (first.revision, list(first.changes), first.lead.epoch) == (0, [], epoch)
        assert first.lead.identity == "server-1" and first.lead.heir == ""

    async def test_a_follower_is_told_every_commit_whole_and_in_order(
        self, shared: SharedStore, other: SharedStore
    ) -> None:
        epoch = await shared.lead("server-1")
        await shared.commit(epoch, [put("before")])
        news = other.follow(1)
        await told(news)
        commits = [[put(str(number), b"%d" % number), put("same", b"%d" % number)] for number in range(50)]
        commits += [[gone("7"), gone("never")], []]
        for commit in commits:
            await shared.commit(epoch, commit)
        heard = await told_until(news, 1 + len(commits))
        records = {("instance", "before"): b"value"}
        revision = 1
        for each in heard:
            assert each.revision >= revision
            apply(records, list(each.changes))
            revision = each.revision
            expected = {("instance", "before"): b"value"}
            for commit in commits[: revision - 1]:
                apply(expected, commit)
            assert records == expected, f"as of revision {revision}"
        assert records == as_dict(await other.load())

    async def test_a_large_commit_is_told_whole_and_loaded_whole(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await shared.lead("server-1")
        news = other.follow(0)
        await told(news)
        everything = [put(str(number), b"%d" % number * 20) for number in range(3_000)]
        committing = asyncio.ensure_future(shared.commit(epoch, everything))
        while not committing.done():
            await asyncio.sleep(0)
            assert len((await other.load()).records) in (0, 3_000)
        heard = await told_until(news, 1)
        assert [len(each.changes) for each in heard if each.changes] == [3_000]
        assert as_dict(await other.load()) == {(kind, key): value for kind, key, value in everything}

    async def test_following_begins_where_it_is_told_to(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await shared.lead("server-1")
        for number in range(5):
            await shared.commit(epoch, [put(str(number))])
        heard = await told_until(other.follow(3), 5)
        assert [change.key for each in heard for change in each.changes] == ["3", "4"]

    async def test_a_revision_that_is_not_there_yet_is_behind(self, shared: SharedStore, other: SharedStore) -> None:
        await shared.commit(await shared.lead("server-1"), [put("1")])
        assert isinstance(await refusal(told(other.follow(7))), Behind)

    async def test_renewing_is_seen_and_changes_no_revision(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await shared.lead("server-1")
        news = other.follow(0)
        before = (await told(news)).lead
        await shared.renew(epoch)
        assert (await led(news, epoch, beat=before.beat + 1)).identity == "server-1"
        await shared.renew(epoch)
        assert (await led(news, epoch, beat=before.beat + 2)).identity == "server-1"
        assert (await other.load()).revision == 0

    async def test_letting_go_is_seen_with_the_heir(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await shared.lead("server-1")
        news = other.follow(0)
        await shared.renew(epoch, "server-2")
        assert (await led(news, epoch, heir="server-2")).identity == "server-1"
        await shared.renew(epoch, ANYBODY)
        lead = await led(news, epoch, heir=ANYBODY)
        new = await other.lead("server-2", lead)
        assert new > epoch
        assert isinstance(await refusal(shared.renew(epoch)), Fenced)
        assert (await led(news, new)).identity == "server-2"

    async def test_a_lead_that_moved_since_it_was_seen_is_not_taken(
        self, shared: SharedStore, other: SharedStore
    ) -> None:
        epoch = await shared.lead("server-1")
        seen = (await told(other.follow(0))).lead
        await shared.renew(epoch)
        assert isinstance(await refusal(other.lead("server-2", seen)), Fenced)
        assert await shared.commit(epoch, [put("1")]) == 1
        assert isinstance(await refusal(other.lead("server-2", Lead())), Fenced)

    async def test_of_many_who_saw_the_same_one_leads(self, opener: Opener) -> None:
        stores = [opener() for _ in range(4)]
        seen = (await told(stores[0].follow(0))).lead
        attempts = [store.lead(f"server-{number}", seen) for number, store in enumerate(stores)]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(each, int) for each in outcomes) == 1
        assert sum(isinstance(each, Fenced) for each in outcomes) == 3
        winner = next(number for number, each in enumerate(outcomes) if isinstance(each, int))
        assert (await told(stores[0].follow(0))).lead.identity == f"server-{winner}"
        for store in stores:
            await store.close()

    async def test_a_leader_is_fenced_by_another_server(self, shared: SharedStore, other: SharedStore) -> None:
        old = await shared.lead("server-1")
        await shared.commit(old, [put("1")])
        new = await other.lead("server-2")
        attempts = [shared.commit(old, [put("1", b"stale")]), shared.renew(old), shared.commit(old, [])]
        for outcome in await asyncio.gather(*attempts, return_exceptions=True):
            assert isinstance(outcome, Fenced)
        assert await other.commit(new, [put("2")]) == 2
        assert as_dict(await shared.load()).keys() == {("instance", "1"), ("instance", "2")}
        again = await shared.lead("server-1")
        assert again > new
        assert await shared.commit(again, [put("3")]) == 3

    async def test_two_who_commit_at_once_never_both_succeed(self, shared: SharedStore, other: SharedStore) -> None:
        old = await shared.lead("server-1")
        stale = [shared.commit(old, [Change("instance", "who", b"old")]) for _ in range(20)]
        attempts = [asyncio.ensure_future(each) for each in stale]
        new = await other.lead("server-2")
        await other.commit(new, [Change("instance", "who", b"new")])
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert all(isinstance(each, int | Fenced) for each in outcomes), outcomes
        assert as_dict(await shared.load())["instance", "who"] == b"new"
        taken = sum(isinstance(each, int) for each in outcomes)
        assert (await other.load()).revision == taken + 1

    async def test_whoever_stops_following_costs_nothing(self, shared: SharedStore, other: SharedStore) -> None:
        epoch = await shared.lead("server-1")
        for _ in range(20):
            news = other.follow(0)
            await told(news)
            await news.aclose()  # type: ignore[attr-defined]
        assert await shared.commit(epoch, [put("1")]) == 1

    async def test_a_closed_store_tells_its_followers(self, shared: SharedStore) -> None:
        news = shared.follow(0)
        await told(news)
        waiting = asyncio.ensure_future(told(news))
        await asyncio.sleep(0)
        await shared.close()
        assert isinstance(await refusal(waiting), Unavailable | StopAsyncIteration)
        assert isinstance(await refusal(shared.renew(1)), Unavailable)
