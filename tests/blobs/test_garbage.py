"""Garbage collection: what a record or an upload names never goes, wherever a crash stops it; the rest does."""

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from roost.blobs import garbage
from roost.blobs.garbage import DeleteBlobs, GarbageCollector, ListBlobs
from roost.blobs.memory import MemoryBlobs
from roost.ports.blobs import digest_of

GRACE_MS, HOLD_MS = 1_000, 400
CONTENTS = [b"one", b"two"]  # few, so that rules meet
CLIENTS = ["ann", "bob"]


def done(call: Coroutine[Any, Any, Any]) -> Any:
    """The blobs in memory never wait."""
    try:
        call.send(None)
    except StopIteration as result:
        return result.value
    raise AssertionError


class Collecting(RuleBasedStateMachine):
    """Clients that hold, ask, upload and commit; a collector that lists and deletes; crashes in between."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.blobs = MemoryBlobs(lambda: self.now_ms)
        self.records: dict[str, set[bytes]] = {}
        self.asked: dict[str, tuple[set[bytes], set[bytes]]] = {}  # what a client wants, and what it has to send
        self.deleting: list[str] = []
        self.collector = self.new_collector()

    def new_collector(self) -> GarbageCollector:
        return GarbageCollector(self.now_ms, self.deleting, grace_ms=GRACE_MS, hold_ms=HOLD_MS)

    def is_named(self, digest: str) -> bool:
        return any(digest_of(data) == digest for contents in self.records.values() for data in contents)

    @rule(client=st.sampled_from(CLIENTS), contents=st.sets(st.sampled_from(CONTENTS), min_size=1))
    def hold_and_ask(self, client: str, contents: set[bytes]) -> None:
        going = self.collector.hold(client, [digest_of(data) for data in contents], self.now_ms)
        assert going is not None
        if not going:  # otherwise the client waits, and asks again
            missing = done(self.blobs.missing([digest_of(data) for data in contents]))
            self.asked[client] = (contents, {data for data in contents if digest_of(data) in missing})

    @rule(client=st.sampled_from(CLIENTS))
    def send(self, client: str) -> None:
        for data in self.asked.get(client, (set(), set()))[1]:
            done(self.blobs.put([(digest_of(data), data)]))

    @rule(client=st.sampled_from(CLIENTS), name=st.sampled_from("xy"))
    def send_and_commit(self, client: str, name: str) -> None:
        self.send(client)
        contents, _ = self.asked.pop(client, (set(), set()))
        if self.collector.is_held(client, [digest_of(data) for data in contents], self.now_ms):
            self.records[name] = contents
            self.collector.release(client)

    @rule(client=st.sampled_from(CLIENTS))
    def give_up(self, client: str) -> None:
        self.collector.release(client)
        self.asked.pop(client, None)

    @rule(name=st.sampled_from("xy"))
    def delete_record(self, name: str) -> None:
        self.records.pop(name, None)

    @rule(ms=st.sampled_from([1, HOLD_MS, 3 * GRACE_MS]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: not self.deleting)
    @rule()
    def decide(self) -> None:
        self.collector.begin()
        effect = self.collector.step(self.is_named, self.now_ms)
        while isinstance(effect, ListBlobs):
            self.collector.listed(done(self.blobs.page(effect.after, 2)))
            effect = self.collector.step(self.is_named, self.now_ms)
        if isinstance(effect, DeleteBlobs):
            self.deleting = list(effect.digests)

    @precondition(lambda self: self.deleting)
    @rule(fails=st.booleans())
    def carry_out_one(self, fails: bool) -> None:
        digest = self.deleting.pop()
        if not fails:
            done(self.blobs.delete(digest))
        self.collector.deleted(digest)

    @rule()
    def crash(self) -> None:
        """Another server leads. Deletions of the last one may still happen; the store and the records stay."""
        self.collector = self.new_collector()

    @invariant()
    def everything_that_is_named_is_there(self) -> None:
        for contents in self.records.values():
            assert done(self.blobs.missing([digest_of(data) for data in contents])) == []

    def teardown(self) -> None:
        """In the end, all garbage goes and nothing else."""
        self.collector = self.new_collector()
        self.now_ms += 2 * GRACE_MS
        for _ in range(50):
            while self.deleting:
                self.carry_out_one(False)
            self.decide()
        left = {blob.digest for blob in done(self.blobs.page()).blobs}
        assert left == {digest_of(data) for contents in self.records.values() for data in contents}


TestCollecting = Collecting.TestCase
TestCollecting.settings = settings(max_examples=200, stateful_step_count=40)


@pytest.fixture
def collector() -> GarbageCollector:
    return GarbageCollector(0, grace_ms=GRACE_MS, hold_ms=HOLD_MS)


def fill(count: int) -> MemoryBlobs:
    blobs = MemoryBlobs(lambda: 0)
    done(blobs.put([(digest_of(str(number).encode()), str(number).encode()) for number in range(count)]))
    return blobs


def test_nothing_goes_while_an_earlier_leader_may_hold_it(collector: GarbageCollector) -> None:
    assert collector.step(lambda _: False, HOLD_MS - 1) is None
    assert collector.step(lambda _: False, GRACE_MS) == ListBlobs("")
    young = MemoryBlobs(lambda: 500)
    done(young.put([(digest_of(b"x"), b"x")]))
    collector.listed(done(young.page()))
    assert collector.step(lambda _: False, GRACE_MS + 499) is None


def test_a_digest_that_is_held_stays_until_it_is_released(collector: GarbageCollector) -> None:
    blobs, digest = fill(1), digest_of(b"0")
    collector.hold("ann", [digest], GRACE_MS)
    collector.listed(done(blobs.page()))
    assert collector.step(lambda _: False, GRACE_MS) is None
    collector.release("ann")
    collector.listed(done(blobs.page()))
    assert collector.step(lambda _: False, GRACE_MS) == DeleteBlobs((digest,))


def test_a_digest_that_is_going_has_to_be_waited_for(collector: GarbageCollector) -> None:
    collector.listed(done(fill(1).page()))
    digest = digest_of(b"0")
    assert collector.step(lambda _: False, GRACE_MS) == DeleteBlobs((digest,))
    assert collector.hold("ann", [digest], GRACE_MS) == {digest}
    assert collector.step(lambda _: False, GRACE_MS) is None  # one deletion at a time
    collector.deleted(digest)
    assert collector.hold("ann", [digest], GRACE_MS) == frozenset()


def test_what_an_earlier_leader_may_still_delete_has_to_be_waited_for() -> None:
    digest = digest_of(b"0")
    collector = GarbageCollector(0, [digest], grace_ms=GRACE_MS, hold_ms=HOLD_MS)
    assert collector.hold("ann", [digest], 0) == {digest}
    assert collector.step(lambda _: False, GRACE_MS) is None
    collector.deleted(digest)
    assert collector.hold("ann", [digest], 0) == frozenset()


def test_an_owner_that_always_asks_does_not_hold_all_that_it_ever_asked_for(
    collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "ASKED_MS", 10 * HOLD_MS)
    collector.hold("ann", ["first"], 0)
    counts = []
    for now_ms in range(0, 12 * HOLD_MS, HOLD_MS // 2):
        collector.hold("ann", ["last"], now_ms)
        counts.append(collector.held_count)
    assert counts[:20] == 20 * [2]
    assert collector.held_count == 1 and collector.is_held("ann", ["last"], now_ms)


def test_deletions_and_holds_are_bounded(collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "DELETES_MAX", 3)
    monkeypatch.setattr(garbage, "HOLDS_MAX", 2)
    collector.listed(done(fill(5).page()))
    effect = collector.step(lambda _: False, GRACE_MS)
    assert isinstance(effect, DeleteBlobs) and len(effect.digests) == 3
    assert collector.hold("ann", ["a", "b"], GRACE_MS) == frozenset()
    assert collector.hold("bob", ["c"], GRACE_MS) is None
    assert collector.hold("bob", ["c"], GRACE_MS + HOLD_MS) == frozenset()  # those of ann have expired
    assert not collector.is_held("ann", ["a"], GRACE_MS + HOLD_MS)
