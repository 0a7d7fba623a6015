"""Commits that are larger than one etcd transaction: whole to every reader, wherever their writer dies or is fenced."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from roost.ports.store import Change, Committed, Fenced, InDoubt, StoreError, Unavailable, WriteConflict, require
from roost.stores.etcd.client import EtcdAnswer, EtcdClient
from roost.stores.etcd.errors import NoAnswer
from roost.stores.etcd.layout import Changes, Layout, encode_changes
from roost.stores.etcd.store import EtcdStore
from roost.stores.etcd.url import EtcdPlace
from roost.stores.etcd.write import EtcdWriter
from roost.wire import etcd_pb2 as pb
from tests.components.etcd import shared_cluster
from tests.stores.contract import as_dict, gone, must, put
from tests.stores.etcd.test_store import new_prefix
from tests.stores.shared import reported, reported_until

LARGE = bytes(range(256)) * 10_240  # 2.5 MiB: three parts
BEFORE = [put("stays", b"old"), put("changes", b"old"), put("goes", b"old"), put("was large", LARGE)]
COMMIT = [put(f"new-{number}", b"%d" % number * 50) for number in range(300)]
COMMIT += [put("changes", b"new"), gone("goes"), put("was large", b"small"), put("is large", LARGE[::-1])]


@pytest.fixture
def prefix() -> str:
    return new_prefix()


@pytest.fixture
async def store(prefix: str) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(EtcdPlace(shared_cluster().endpoints, prefix))
    yield store
    await store.close()


def left_over(prefix: str, below: str) -> str:
    return shared_cluster().ctl("get", "--prefix", "--keys-only", f"{prefix}/{below}/").strip()


class Interrupted(EtcdClient):
    """A client to which something happens when it has done so many transactions."""

    def __init__(self, after: int, happens: Callable[[], Awaitable[object]]) -> None:
        super().__init__(EtcdPlace(shared_cluster().endpoints))
        self.left, self._happens = after, happens

    async def txn(self, request: pb.TxnRequest, patience_s: float = 0.0) -> EtcdAnswer:
        self.left -= 1
        if self.left == -1:
            await self._happens()
        return await super().txn(request, patience_s)


async def dies() -> None:
    raise ConnectionAbortedError("the writer is dead")


async def interrupted_commit(prefix: str, client: Interrupted, changes: Changes) -> list[int] | Exception:
    """Lead, then commit with the interruption counted from there; what came of it, and of spreading it."""
    after, client.left = client.left, -2
    writer = EtcdWriter(client, Layout(prefix), 128, True)
    epoch = require(await writer.lead("server-1", None)).epoch
    await writer.commit(epoch, [{}])
    client.left = after
    [outcome] = await writer.commit(epoch, [changes])
    if isinstance(outcome, Committed):
        await writer.tidy()
    await client.close()
    return outcome


def expected(committed: bool) -> dict[tuple[str, str], bytes]:
    records = {change.record: change.value for change in [*BEFORE, *(COMMIT if committed else [])]}
    return {name: value for name, value in records.items() if value is not None}


@pytest.mark.parametrize("after", range(14))
async def test_a_writer_that_dies_anywhere_leaves_all_or_nothing(prefix: str, store: EtcdStore, after: int) -> None:
    await must(store).commit(await must(store).lead("server-0"), BEFORE)
    outcome = await interrupted_commit(prefix, Interrupted(after, dies), encode_changes(COMMIT))
    assert isinstance(outcome, ConnectionAbortedError) or outcome == Committed(3)
    seen = await must(store).load()
    committed = seen.revision == 3
    assert as_dict(seen) == expected(committed)
    assert committed or after < 6, "it took more transactions than it should"

    epoch = await must(store).lead("server-2")
    assert await must(store).commit(epoch, [put("later")]) == seen.revision + 1
    assert as_dict(await must(store).load()) == {**expected(committed), ("instance", "later"): b"value"}
    assert left_over(prefix, "stage") == ""
    assert len(left_over(prefix, "part").split()) == 3


@pytest.mark.parametrize("after", range(9))
async def test_a_leader_that_is_replaced_anywhere_is_fenced(prefix: str, store: EtcdStore, after: int) -> None:
    await must(store).commit(await must(store).lead("server-0"), BEFORE)
    epochs = []

    async def replaced() -> None:
        epochs.append(await must(store).lead("server-2"))

    outcome = await interrupted_commit(prefix, Interrupted(after, replaced), encode_changes(COMMIT))
    committed = outcome == Committed(3)
    assert committed or isinstance(outcome, Fenced)
    assert as_dict(await must(store).load()) == expected(committed)
    assert await must(store).commit(epochs[0], [put("later")]) == (4 if committed else 3)
    assert as_dict(await must(store).load()) == {**expected(committed), ("instance", "later"): b"value"}
    assert left_over(prefix, "stage") == ""


async def test_a_follower_hears_of_it_once_and_whole(prefix: str, store: EtcdStore) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, BEFORE)
    other = EtcdStore(EtcdPlace(shared_cluster().endpoints, prefix))
    other_update = other.follow(1)
    await reported(other_update)
    await must(store).commit(epoch, COMMIT)
    await must(store).commit(epoch, [put("later")])
    received = [update for update in await reported_until(other_update, 3) if update.changes]
    assert [update.revision for update in received] in ([2, 3], [3])
    changes = [change for update in received for change in update.changes]
    assert changes == [*COMMIT, put("later")]
    await other.close()


async def test_values_in_parts_come_and_go(prefix: str, store: EtcdStore) -> None:
    epoch = await must(store).lead("server-1")
    records: dict[tuple[str, str], bytes] = {}
    shapes: list[bytes | None] = [LARGE, LARGE[:-7], b"small", LARGE, None, None, LARGE + LARGE, LARGE, b"", None]
    for number, value in enumerate(shapes):
        await must(store).commit(epoch, [Change("instance", "1", value), put("beside", b"%d" % number)])
        records["instance", "beside"] = b"%d" % number
        records.pop(("instance", "1"), None)
        if value is not None:
            records["instance", "1"] = value
        assert as_dict(await must(store).load()) == records
    assert left_over(prefix, "part") == "" and left_over(prefix, "stage") == ""


class Doubled(EtcdClient):
    """Loses the first answer to every transaction, and asks again."""

    async def txn(self, request: pb.TxnRequest, patience_s: float = 0.0) -> EtcdAnswer:
        await super().txn(request, patience_s)
        return (await super().txn(request, patience_s))._replace(repeated=True)


async def test_what_is_sent_twice_happens_once(prefix: str, store: EtcdStore) -> None:
    client = Doubled(EtcdPlace(shared_cluster().endpoints))
    writer = EtcdWriter(client, Layout(prefix), 128, True)
    epoch = require(await writer.lead("server-1", None)).epoch
    assert epoch == 1
    assert await writer.commit(epoch, [encode_changes(BEFORE)]) == [Committed(1)]
    await writer.tidy()
    await writer.renew(epoch, "")
    assert await writer.commit(epoch, [encode_changes([put("a")]), encode_changes([put("b")])]) == [
        Committed(2),
        Committed(3),
    ]
    assert await writer.commit(epoch, [encode_changes(COMMIT)]) == [Committed(4)]
    await writer.tidy()
    snapshot = await must(store).load()
    assert snapshot.revision == 4
    assert as_dict(snapshot) == {**expected(True), ("instance", "a"): b"value", ("instance", "b"): b"value"}
    lead = (await reported(store.follow(4))).lead
    assert (lead.epoch, lead.renewals) == (1, 1)
    await client.close()


async def test_a_commit_that_comes_late_is_noticed(prefix: str, store: EtcdStore) -> None:
    """The answer was lost, a load did not see it, and then it was written after all."""
    late: list[pb.TxnRequest] = []

    class Late(EtcdClient):
        async def txn(self, request: pb.TxnRequest, patience_s: float = 0.0) -> EtcdAnswer:
            if late or not any(put.request_put.key.endswith(b"/head") for put in request.success):
                return await super().txn(request, patience_s)
            late.append(request)
            raise NoAnswer(Unavailable("no answer"))

    client = Late(EtcdPlace(shared_cluster().endpoints))
    writer = EtcdWriter(client, Layout(prefix), 128, True)
    epoch = require(await writer.lead("server-1", None)).epoch
    [outcome] = await writer.commit(epoch, [encode_changes([put("late")])])
    assert isinstance(outcome, StoreError) and outcome.failure == InDoubt("no answer")
    [outcome] = await writer.commit(epoch, [encode_changes([put("1")])])
    assert isinstance(outcome, Unavailable) and "load first" in str(outcome)
    assert (await writer.load()).revision == 0
    assert (await client.txn(late[0])).response.succeeded
    [outcome] = await writer.commit(epoch, [encode_changes([put("1")])])
    assert isinstance(outcome, StoreError) and isinstance(outcome.failure, WriteConflict)
    assert (await writer.load()).records == [put("late")]
    assert await writer.commit(epoch, [encode_changes([put("1")])]) == [Committed(2)]
    assert as_dict(await must(store).load()).keys() == {("instance", "late"), ("instance", "1")}
    await client.close()


async def test_a_large_commit_that_is_published_late_finds_its_pieces_swept(prefix: str, store: EtcdStore) -> None:
    late: list[pb.TxnRequest] = []

    class Late(EtcdClient):
        async def txn(self, request: pb.TxnRequest, patience_s: float = 0.0) -> EtcdAnswer:
            if not late and any(b'"pending":{' in put.request_put.value for put in request.success):
                late.append(request)
                raise NoAnswer(Unavailable("no answer"))
            answer = await super().txn(request, patience_s)
            if late and any(b"/stage/" in swept.request_delete_range.key for swept in request.success):
                assert not (await super().txn(late[0])).response.succeeded
            return answer

    client = Late(EtcdPlace(shared_cluster().endpoints))
    writer = EtcdWriter(client, Layout(prefix), 128, True)
    epoch = require(await writer.lead("server-1", None)).epoch
    [outcome] = await writer.commit(epoch, [encode_changes(COMMIT)])
    assert isinstance(outcome, StoreError) and outcome.failure == InDoubt("no answer")
    assert (await writer.load()).revision == 0
    assert await writer.commit(epoch, [encode_changes([put("1")])]) == [Committed(1)]
    assert late
    assert (await must(store).load()).records == [put("1")]
    await client.close()


async def test_crowds_of_commits_of_all_sizes_keep_their_order(store: EtcdStore) -> None:
    epoch = await must(store).lead("server-1")
    commits = [
        [put("same", b"%d" % number), *(put(f"{number}-{index}") for index in range(number * 7 % 200))]
        for number in range(60)
    ]
    assert await asyncio.gather(*(must(store).commit(epoch, commit) for commit in commits)) == list(range(1, 61))
    records = as_dict(await must(store).load())
    assert records["instance", "same"] == b"59"
    assert len(records) == 1 + sum(len(commit) - 1 for commit in commits)
