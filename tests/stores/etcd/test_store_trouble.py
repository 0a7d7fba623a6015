"""The etcd store when members die, connections break and history is compacted: nothing lost, nothing twice."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from roost.ports.store import Behind, Committed, Fenced, Lead, News, Snapshot, Unavailable
from roost.stores.etcd import client, write
from roost.stores.etcd.store import EtcdStore
from roost.stores.etcd.url import EtcdPlace
from tests.components.etcd import Cluster, shared_cluster
from tests.e2e.proxy import Proxy
from tests.stores.contract import Records, apply, as_dict, must, put, refusal
from tests.stores.etcd.test_store import new_prefix
from tests.stores.shared import PATIENCE_S, reported, reported_until


@pytest.fixture(scope="module")
def breakable() -> Iterator[Cluster]:
    """A cluster of our own; a test that kills a member starts it again."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def prefix() -> str:
    return new_prefix()


async def gathered(changes: AsyncIterator[News], revision: int) -> Records:
    """What a follower of an empty store knows when it has a revision."""
    records: Records = {}
    for update in await reported_until(changes, revision):
        apply(records, list(update.changes))
    return records


# Members that die


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_the_member_we_talk_to_dies_in_the_middle_of_commits(breakable: Cluster, prefix: str, which: str) -> None:
    leader = breakable.leader()
    victim = leader if which == "leader" else (leader + 1) % 3
    endpoints = breakable.endpoints[victim:] + breakable.endpoints[:victim]
    store, other = EtcdStore(EtcdPlace(endpoints, prefix)), EtcdStore(EtcdPlace(endpoints, prefix))
    epoch = await must(store).lead("server-1")
    update = other.follow(0)
    await reported(update)

    answered: list[int] = []
    for number in itertools.count():
        if number == 50:
            breakable.kill(victim)
        if isinstance(await store.commit(epoch, [put(str(number))]), Committed):
            answered.append(number)
        else:
            await must(store).load()
        if number >= 150:
            break
    snapshot = await must(store).load()
    records = as_dict(snapshot)
    assert {("instance", str(number)) for number in answered} <= records.keys()
    assert len(records) == snapshot.revision, "every commit made one record, so none was applied twice"
    assert len(answered) >= 150, "one death costs at most the commits under way"
    assert await gathered(update, snapshot.revision) == records
    await store.close()
    await other.close()
    breakable.start_member(victim)
    breakable.wait_for(victim)


async def test_all_members_are_gone_for_a_while(breakable: Cluster, prefix: str) -> None:
    store = EtcdStore(EtcdPlace(breakable.endpoints, prefix), 1.0)
    other = EtcdStore(EtcdPlace(breakable.endpoints, prefix))
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("before")])
    update = other.follow(0)
    await reported_until(update, 1)
    waiting = asyncio.ensure_future(reported(update))
    for number in range(3):
        breakable.kill(number)
    error = await refusal(must(store).commit(epoch, [put("meanwhile")]))
    assert isinstance(error, Unavailable) and "cannot be reached" in str(error)
    assert isinstance(await refusal(must(store).renew(epoch)), Unavailable)
    for number in range(3):
        breakable.start_member(number)
    for number in range(3):
        breakable.wait_for(number)

    assert "load first" in str(await refusal(must(store).commit(epoch, [put("too early")])))
    snapshot = await must(store).load()
    assert await must(store).commit(epoch, [put("after")]) == snapshot.revision + 1
    assert (await waiting).revision == snapshot.revision + 1
    assert ("instance", "too early") not in as_dict(await must(store).load())
    await store.close()
    await other.close()


async def test_a_standby_does_not_wait_for_etcd_to_take_the_lead(breakable: Cluster, prefix: str) -> None:
    """It would take it at the return of etcd, before the leader can renew it."""
    leading = EtcdStore(EtcdPlace(breakable.endpoints, prefix))
    epoch = await must(leading).lead("server-1")
    standby = EtcdStore(EtcdPlace(breakable.endpoints, prefix))
    for number in range(3):
        breakable.kill(number)
    error = await refusal(must(standby).lead("server-2", Lead(epoch, "server-1")))
    assert isinstance(error, Unavailable)
    for number in range(3):
        breakable.start_member(number)
    for number in range(3):
        breakable.wait_for(number)
    await must(leading).renew(epoch)
    await leading.close()
    await standby.close()


async def test_one_dead_member_does_not_keep_a_standby_from_the_lead(breakable: Cluster, prefix: str) -> None:
    leading = EtcdStore(EtcdPlace(breakable.endpoints, prefix))
    epoch = await must(leading).lead("server-1")
    standby = EtcdStore(EtcdPlace(breakable.endpoints, prefix))
    breakable.kill(0)
    assert await must(standby).lead("server-2", Lead(epoch, "server-1")) == epoch + 1
    breakable.start_member(0)
    breakable.wait_for(0)
    await leading.close()
    await standby.close()


async def test_a_minority_says_that_it_has_no_leader(breakable: Cluster, prefix: str) -> None:
    store = EtcdStore(EtcdPlace(breakable.endpoints, prefix), 4.0)
    await must(store).lead("server-1")
    for number in (0, 1):
        breakable.kill(number)
    asked = EtcdStore(EtcdPlace(breakable.endpoints[2:], prefix), 4.0)
    error = await refusal(must(asked).load())
    assert isinstance(error, Unavailable) and ("no leader" in str(error) or "does not answer" in str(error))
    for number in (0, 1):
        breakable.start_member(number)
        breakable.wait_for(number)
    assert (await must(asked).load()).revision == 0
    await store.close()
    await asked.close()


# Connections that break


async def test_a_connection_that_breaks_during_catch_up_loses_no_event(prefix: str) -> None:
    endpoint = shared_cluster().endpoints[0]
    store = EtcdStore(EtcdPlace((endpoint,), prefix))
    epoch = await must(store).lead("server-1")
    count = 2_500  # etcd sends a thousand at a time
    for start in range(0, count, 50):
        for number in range(start, start + 50):
            await must(store).commit(epoch, [put(str(number), b"x" * 1_000)])
    host, _, port = endpoint.rpartition(":")
    with Proxy((host, int(port))) as proxy:
        other = EtcdStore(EtcdPlace((proxy.address,), prefix))
        changes = other.follow(0)
        received = [await reported(changes), await reported(changes)]
        assert received[-1].revision < count
        proxy.heal()  # every connection there is breaks
        while received[-1].revision < count:
            received.append(await reported(changes))
            if len(received) == 3:
                proxy.heal()
        keys = [change.key for update in received for change in update.changes]
        assert keys == [str(number) for number in range(count)]
        await other.close()
    await store.close()


async def test_a_silent_network_is_noticed_and_survived(prefix: str) -> None:
    endpoint = shared_cluster().endpoints[0]
    store = EtcdStore(EtcdPlace(shared_cluster().endpoints, prefix))
    epoch = await must(store).lead("server-1")
    host, _, port = endpoint.rpartition(":")
    with Proxy((host, int(port))) as proxy:
        other = EtcdStore(EtcdPlace((proxy.address, shared_cluster().endpoints[1]), prefix))
        update = other.follow(0)
        await reported(update)
        await must(store).commit(epoch, [put("1")])
        assert (await reported(update)).revision == 1
        proxy.cut()
        await must(store).commit(epoch, [put("2")])
        assert (await reported(update)).revision == 2, "by way of the other member"
        await other.close()
    await store.close()


# History that is compacted


async def test_a_server_that_is_behind_a_compaction_learns_it(prefix: str) -> None:
    store = EtcdStore(EtcdPlace(shared_cluster().endpoints, prefix))
    epoch = await must(store).lead("server-1")
    for number in range(20):
        await must(store).commit(epoch, [put(str(number))])
    compact_now()
    assert isinstance(await refusal(reported_until(store.follow(3), 20)), Behind)
    snapshot = await must(store).load()
    assert snapshot.revision == 20
    assert (await reported(store.follow(20))).revision == 20
    await store.close()


async def test_a_follower_that_was_cut_off_beyond_a_compaction_learns_it(prefix: str) -> None:
    endpoint = shared_cluster().endpoints[0]
    host, _, port = endpoint.rpartition(":")
    store = EtcdStore(EtcdPlace((endpoint,), prefix))
    epoch = await must(store).lead("server-1")
    with Proxy((host, int(port))) as proxy:
        other = EtcdStore(EtcdPlace((proxy.address,), prefix))
        update = other.follow(0)
        await reported(update)
        waiting = asyncio.ensure_future(reported(update))
        await asyncio.sleep(0)
        await must(store).commit(epoch, [put("0")])
        await waiting
        proxy.cut()
        for number in range(5):
            await must(store).commit(epoch, [put(str(number))])
        compact_now()
        proxy.heal()
        assert isinstance(await refusal(reported_until(update, 6)), Behind)
        await other.close()
    await store.close()


async def test_the_leader_compacts_what_is_old(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "COMPACT_BYTES", 20_000)
    keeping = EtcdStore(EtcdPlace(shared_cluster().endpoints, prefix + "-kept", compact=False))
    store = EtcdStore(EtcdPlace(shared_cluster().endpoints, prefix))
    for etcd_store in (keeping, store):
        epoch = await must(etcd_store).lead("server-1")
        for _ in range(50):
            await must(etcd_store).commit(epoch, [put("same", b"x" * 1_000)])
        received = reported_until(etcd_store.follow(1), 50)
        if etcd_store is store:
            assert isinstance(await refusal(received), Behind)
            assert await reported_until(etcd_store.follow(45), 50), "the last ones are kept"
        else:
            assert (await received)[-1].revision == 50
        await etcd_store.close()


def compact_now() -> None:
    revision = shared_cluster().ctl("endpoint", "status", "--write-out=json").split('"revision":')[1].split(",")[0]
    shared_cluster().ctl("compact", revision)


async def test_an_etcd_that_was_set_back_is_noticed(prefix: str) -> None:
    with Cluster(members=1) as cluster:
        store = EtcdStore(EtcdPlace(cluster.endpoints, prefix))
        epoch = await must(store).lead("server-1")
        for number in range(5):
            await must(store).commit(epoch, [put(str(number))])
        update = store.follow(0)
        await reported_until(update, 5)
        waiting = asyncio.ensure_future(reported(update))
        cluster.kill(0)
        cluster.forget(0)
        cluster.start_member(0)
        assert isinstance(await refusal(waiting), Behind)
        assert isinstance(await refusal(must(store).commit(epoch, [put("6")])), Fenced)
        assert await must(store).load() == Snapshot(0, [])
        await store.close()


# Answers larger than a message


async def test_an_answer_in_fragments_is_put_together(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [option for option in client.OPTIONS if option[0] != "grpc.max_receive_message_length"]
    monkeypatch.setattr(client, "OPTIONS", [*small, ("grpc.max_receive_message_length", 3 << 20)])
    store = EtcdStore(EtcdPlace(shared_cluster().endpoints, prefix))
    epoch = await must(store).lead("server-1")
    # 1.2 MB each: pieces of 2 MB do not end where commits end.
    commits = [[put(f"{number}-{index}", bytes([number]) * 300_000) for index in range(4)] for number in range(9)]
    for commit in commits:
        await must(store).commit(epoch, commit)
    received = await reported_until(store.follow(0), 9)  # 11 MB, which etcd would send as one message
    assert [change for update in received for change in update.changes] == [
        change for commit in commits for change in commit
    ]
    assert len((await must(store).load()).records) == 36
    await store.close()


async def test_a_quiet_watch_keeps_up_with_others_compaction(prefix: str) -> None:
    """etcd says now and then that there was nothing; a break later on does not lead back beyond a compaction."""
    with Cluster(flags=("--experimental-watch-progress-notify-interval=100ms",), members=1) as cluster:
        host, _, port = cluster.endpoints[0].rpartition(":")
        with Proxy((host, int(port))) as proxy:
            store, other = (
                EtcdStore(EtcdPlace((cluster.endpoints[0],), prefix)),
                EtcdStore(EtcdPlace((proxy.address,), prefix)),
            )
            epoch = await must(store).lead("server-1")
            update = other.follow(0)
            await reported(update)
            waiting = asyncio.ensure_future(reported(update))
            stranger = EtcdStore(EtcdPlace(cluster.endpoints, prefix + "-stranger"))
            strangers_epoch = await must(stranger).lead("stranger")
            for number in range(200):  # at least one notice comes during these 2 s
                await must(stranger).commit(strangers_epoch, [put(str(number))])
                await asyncio.wait([waiting], timeout=0.01)
            revision = int(cluster.ctl("endpoint", "status", "--write-out=json").split('"revision":')[1].split(",")[0])
            cluster.ctl("compact", str(revision - 50))
            proxy.heal()
            await must(store).commit(epoch, [put("1")])
            async with asyncio.timeout(PATIENCE_S):
                assert (await waiting).revision == 1
            for etcd_store in (store, other, stranger):
                await etcd_store.close()
