"""What every store promises. A store's test file inherits from StoreContract and gives the fixture `opener`."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roost.ports.store import (
    Change,
    Committed,
    Fenced,
    Lead,
    SharedStore,
    Snapshot,
    Store,
    StoreError,
    StoreFailure,
    Unavailable,
    require,
)

Records = dict[tuple[str, str], bytes]


class Opener(Protocol):
    """Opens the store that lies at a place; what was committed there before is there again."""

    def __call__(self, place: str = "here") -> Store: ...


# Few names, so that changes meet; any text that UTF-8 can hold, because keys are made of what people type.
names = st.sampled_from(["", "a", "b", "B", "a\0", "ä", "☃"]) | st.text(st.characters(codec="utf-8"), max_size=5)
changes = st.builds(Change, names, names, st.none() | st.binary(max_size=20))
commits = st.lists(st.lists(changes, max_size=6), max_size=6)


def put(key: str, value: bytes = b"value") -> Change:
    return Change("instance", key, value)


def gone(key: str) -> Change:
    return Change("instance", key, None)


def as_dict(snapshot: Snapshot) -> Records:
    records = {(record.kind, record.key): record.value for record in snapshot.records}
    assert len(records) == len(snapshot.records), "a record was loaded twice"
    assert all(isinstance(value, bytes) for value in records.values()), "a deleted record was loaded"
    return records  # type: ignore[return-value]


def apply(records: Records, commit: list[Change]) -> None:
    for change in commit:
        if change.value is None:
            records.pop(change.record, None)
        else:
            records[change.record] = change.value


class must:
    """The calls of a store where any failure is the end of the test: its results without their wrapping."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def lead(self, identity: str, seen: Lead | None = None) -> int:
        return require(await self.store.lead(identity, seen)).epoch

    async def load(self) -> Snapshot:
        return require(await self.store.load())

    async def commit(self, epoch: int, changes: Sequence[Change]) -> int:
        return require(await self.store.commit(epoch, changes)).revision

    async def renew(self, epoch: int, successor: str = "") -> None:
        assert isinstance(self.store, SharedStore)
        require(await self.store.renew(epoch, successor))


async def refusal(attempt: Awaitable[object]) -> StoreFailure | BaseException:
    """The failure that a store answered with, or the exception for a mistake of the caller."""
    [outcome] = await outcomes_of(attempt)
    assert isinstance(outcome, StoreFailure | Exception), f"not refused: {outcome}"
    return outcome


async def outcomes_of(*attempts: Awaitable[object]) -> list[Any]:
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    return [outcome.failure if isinstance(outcome, StoreError) else outcome for outcome in outcomes]


class StoreContract:
    @pytest.fixture
    def opener(self) -> Opener:
        raise NotImplementedError

    @pytest.fixture
    async def store(self, opener: Opener) -> AsyncIterator[Store]:
        store = opener()
        yield store
        await store.close()

    @pytest.fixture
    async def epoch(self, store: Store) -> int:
        return await must(store).lead("server-1")

    async def test_a_new_store_is_empty(self, store: Store) -> None:
        assert await must(store).load() == Snapshot(0, [])

    async def test_what_was_committed_is_loaded(self, store: Store, epoch: int) -> None:
        await must(store).commit(epoch, [put("1", b"one"), put("2", b"two"), Change("node", "1", b"other kind")])
        await must(store).commit(epoch, [put("2", b"changed"), put("3", b""), put("2", b"changed twice")])
        await must(store).commit(epoch, [gone("1"), gone("never there")])
        snapshot = await must(store).load()
        assert snapshot.revision == 3
        assert as_dict(snapshot) == {
            ("instance", "2"): b"changed twice",
            ("instance", "3"): b"",
            ("node", "1"): b"other kind",
        }
        assert all(type(record) is Change for record in snapshot.records)

    async def test_the_last_change_of_a_record_counts(self, store: Store, epoch: int) -> None:
        await must(store).commit(epoch, [put("1"), gone("1"), gone("2"), put("2")])
        assert as_dict(await must(store).load()) == {("instance", "2"): b"value"}

    # Each example has a place of its own, and every store inherits the test: both are meant.
    @settings(
        max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
    )
    @given(before=commits, together=commits, after=commits)
    async def test_it_is_a_dictionary_that_survives(
        self, opener: Opener, before: list[list[Change]], together: list[list[Change]], after: list[list[Change]]
    ) -> None:
        place = f"example-{next(COUNTER)}"
        expected: Records = {}
        store = opener(place)
        epoch = await must(store).lead("server-1")
        for commit in before:
            await must(store).commit(epoch, commit)
            apply(expected, commit)
            assert as_dict(await must(store).load()) == expected
        await asyncio.gather(*(must(store).commit(epoch, commit) for commit in together))
        for commit in together:
            apply(expected, commit)
        await store.close()

        store = opener(place)
        snapshot = await must(store).load()
        assert as_dict(snapshot) == expected
        assert snapshot.revision == len(before) + len(together)
        epoch = await must(store).lead("server-2")
        for commit in after:
            await must(store).commit(epoch, commit)
            apply(expected, commit)
        snapshot = await must(store).load()
        assert as_dict(snapshot) == expected
        assert snapshot.revision == len(before) + len(together) + len(after)
        await store.close()

    async def test_the_revision_grows_by_one_and_survives(self, opener: Opener) -> None:
        # The shapes that leave no record behind are the ones a store could forget to count.
        shapes = [
            [],
            [put("1")],
            [gone("1")],
            [],
            [put("2"), gone("2")],
            [put("3")],
            [gone("3"), put("4")],
            [gone("4")],
        ]
        revision = 0
        for shape in shapes:
            store = opener()
            epoch = await must(store).lead("server-1")
            assert (await must(store).load()).revision == revision
            revision += 1
            assert await must(store).commit(epoch, shape) == revision
            assert (await must(store).load()).revision == revision
            await store.close()
        store = opener()
        assert (await must(store).load()).revision == revision
        await store.close()

    async def test_every_lead_has_a_larger_epoch(self, opener: Opener) -> None:
        epochs = []
        for server in ("server-1", "server-2", "server-1"):
            store = opener()
            epochs += [await must(store).lead(server), await must(store).lead(server)]
            await store.close()
        assert epochs == sorted(set(epochs)) and epochs[0] >= 1

    async def test_an_old_epoch_is_fenced_and_writes_nothing(self, store: Store) -> None:
        old = await must(store).lead("server-1")
        await must(store).commit(old, [put("1")])
        new = await must(store).lead("server-2")
        for epoch in (old, new + 1, 0, -1):
            assert isinstance(
                await refusal(must(store).commit(epoch, [put("1", b"stale"), gone("1"), put("2")])), Fenced
            )
        assert await must(store).load() == Snapshot(1, [put("1")])
        assert await must(store).commit(new, [put("2")]) == 2

    async def test_an_old_epoch_is_fenced_in_the_middle_of_others(self, store: Store) -> None:
        old = await must(store).lead("server-1")
        new = await must(store).lead("server-2")
        attempts = [must(store).commit(epoch, [put(str(number))]) for number, epoch in enumerate([new, old, new])]
        outcomes = await outcomes_of(*attempts)
        assert [outcomes[0], outcomes[2]] == [1, 2]
        assert isinstance(outcomes[1], Fenced)
        assert as_dict(await must(store).load()).keys() == {("instance", "0"), ("instance", "2")}

    async def test_expected_outcomes_are_values(self, store: Store) -> None:
        old, new = await must(store).lead("server-1"), await must(store).lead("server-2")
        assert await store.commit(new, [put("1")]) == Committed(1)
        assert isinstance(await store.commit(old, [put("2")]), Fenced)
        await store.close()
        assert isinstance(await store.lead("server-1"), Unavailable)
        assert isinstance(await store.load(), Unavailable)
        assert isinstance(await store.commit(new, [put("3")]), Unavailable)

    async def test_a_server_that_never_led_cannot_commit(self, store: Store) -> None:
        assert isinstance(await refusal(must(store).commit(0, [put("1")])), Fenced)
        assert await must(store).load() == Snapshot(0, [])

    @pytest.mark.parametrize(
        "wrong",
        [
            Change("instance", "2", 7),
            Change("instance", "2", "text"),
            Change("instance", "\ud800", b""),
            gone("\udfff"),
        ],  # type: ignore[arg-type]
        ids=["number", "text", "surrogate", "surrogate-gone"],
    )
    async def test_a_commit_is_all_or_nothing(self, store: Store, epoch: int, wrong: Change) -> None:
        await must(store).commit(epoch, [put("0")])
        error = await refusal(must(store).commit(epoch, [put("1"), gone("0"), wrong, put("3")]))
        assert isinstance(error, TypeError | ValueError)
        assert await must(store).load() == Snapshot(1, [put("0")])
        assert await must(store).commit(epoch, [put("1")]) == 2

    async def test_one_callers_mistake_is_not_its_neighbours(self, store: Store, epoch: int) -> None:
        wrong = Change("instance", "\ud800", b"")
        attempts = [must(store).commit(epoch, commit) for commit in ([put("0")], [put("1"), wrong], [put("2")])]
        outcomes = await outcomes_of(*attempts)
        assert [outcomes[0], outcomes[2]] == [1, 2]
        assert isinstance(outcomes[1], ValueError)
        assert as_dict(await must(store).load()).keys() == {("instance", "0"), ("instance", "2")}

    async def test_large_values(self, store: Store, epoch: int) -> None:
        value = bytes(range(256)) * 4096  # 1 MiB
        await must(store).commit(epoch, [put("1", value), put("2")])
        assert as_dict(await must(store).load()) == {("instance", "1"): value, ("instance", "2"): b"value"}

    async def test_many_changes_in_one_commit(self, store: Store, epoch: int) -> None:
        everything = [put(str(number), b"%d" % number) for number in range(10_000)]
        assert await must(store).commit(epoch, everything) == 1
        assert as_dict(await must(store).load()) == {change.record: change.value for change in everything}
        assert await must(store).commit(epoch, [gone(str(number)) for number in range(1, 10_000)]) == 2
        assert await must(store).load() == Snapshot(2, [put("0", b"0")])

    async def test_commits_under_way_get_their_own_revision_in_order(self, store: Store, epoch: int) -> None:
        count = 300
        keys = [str(number % 7) for number in range(count)]
        attempts = [must(store).commit(epoch, [put(key, b"%d" % number)]) for number, key in enumerate(keys)]
        assert await asyncio.gather(*attempts) == list(range(1, count + 1))
        last = {("instance", key): b"%d" % number for number, key in enumerate(keys)}
        assert as_dict(await must(store).load()) == last

    async def test_a_load_sees_the_commits_called_before_it(self, store: Store, epoch: int) -> None:
        commits = [asyncio.ensure_future(must(store).commit(epoch, [put(str(number))])) for number in range(20)]
        await asyncio.sleep(0)  # every commit has been called
        snapshot = await must(store).load()
        assert snapshot.revision == len(snapshot.records) == 20
        await asyncio.gather(*commits)

    async def test_cancelling_a_caller_breaks_nothing(self, store: Store, epoch: int) -> None:
        tasks = [asyncio.ensure_future(must(store).commit(epoch, [put(str(number))])) for number in range(20)]
        await asyncio.sleep(0)  # every commit has been called
        for task in tasks[::2]:
            task.cancel()
        outcomes = await outcomes_of(*tasks)
        assert outcomes[1::2] == list(range(2, 21, 2))
        assert await must(store).commit(epoch, [put("after")]) == 21
        assert (await must(store).load()).revision == 21

    async def test_a_cancelled_close_can_be_called_again(self, store: Store, epoch: int) -> None:
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await store.close()
        assert isinstance(await refusal(must(store).load()), Unavailable)

    async def test_closing_waits_for_the_commits_under_way(self, opener: Opener) -> None:
        store = opener()
        epoch = await must(store).lead("server-1")
        commits = [asyncio.ensure_future(must(store).commit(epoch, [put(str(number))])) for number in range(20)]
        await asyncio.sleep(0)  # every commit has been called
        await store.close()
        assert [commit.done() for commit in commits] == [True] * 20
        assert await asyncio.gather(*commits) == list(range(1, 21))

    async def test_a_store_that_is_closing_takes_no_more(self, store: Store, epoch: int) -> None:
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)  # close has been called
        assert isinstance(await refusal(must(store).commit(epoch, [put("1")])), Unavailable)
        await closing

    async def test_a_closed_store_refuses_everything_but_closing(self, store: Store, epoch: int) -> None:
        await must(store).commit(epoch, [put("1")])
        await store.close()
        asks: list[Callable[[], Awaitable[object]]] = [
            lambda: must(store).commit(epoch, [put("2")]),
            lambda: must(store).lead("server-1"),
            store.load,
        ]
        for ask in asks:
            assert isinstance(await refusal(ask()), Unavailable)
        await store.close()

    async def test_a_store_that_was_never_used_can_be_closed(self, opener: Opener) -> None:
        store = opener()
        await store.close()
        assert isinstance(await refusal(must(store).load()), Unavailable)


COUNTER = itertools.count()
