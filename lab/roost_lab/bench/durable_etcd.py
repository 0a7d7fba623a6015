"""Durable changes on etcd: the store's commits, against bare transactions with the same puts on the same cluster."""

import asyncio
import time

import grpc

from roost.ports.store import Change, require
from roost.stores.etcd.client import OPTIONS
from roost.stores.etcd.store import EtcdStore
from roost.stores.etcd.url import EtcdPlace
from roost.wire import etcd_pb2 as pb
from roost.wire import etcd_pb2_grpc as services
from roost_lab.bench.figure import Figure, figure
from roost_lab.components.etcd import MEMBERS, Cluster

GROUP = 100  # changes of one commit: below etcd's 128 operations
VALUE = b"x" * 600  # about what an instance takes
CALLERS = 64
TINY = {"groups": 2, "rounds": 1}


def measure(groups: int = 40, rounds: int = 6) -> list[Figure]:
    """The store and bare etcd take turns in rounds, so that the rest of the machine's load meets both."""
    with Cluster(in_memory=False) as cluster:
        ours_s, bare_s, small_s = asyncio.run(_measure(cluster.endpoints, groups, rounds))
    changes = GROUP * groups * rounds
    ours, bare = changes / ours_s, changes / bare_s
    small = CALLERS * groups / small_s
    return [
        figure("etcd_changes_per_s", ours, "1/s", better="higher", members=MEMBERS, changes=changes, group=GROUP),
        figure("etcd_bare_puts_per_s", bare, "1/s", better="higher", members=MEMBERS, puts=changes, group=GROUP),
        figure("etcd_changes_ratio", ours / bare, "of bare etcd", better="higher", bound=0.30, goal=0.50),
        figure("etcd_small_commits_per_s", small, "1/s", better="higher", callers=CALLERS),
    ]


async def _measure(endpoints: list[str], groups: int, rounds: int) -> tuple[float, float, float]:
    store = EtcdStore(EtcdPlace(tuple(endpoints), "/ours"))
    epoch = require(await store.lead("bench")).epoch
    require(await store.commit(epoch, []))  # whatever is done once
    channel = grpc.aio.insecure_channel(endpoints[0], options=OPTIONS)
    kv = services.KVStub(channel)
    await kv.Range(pb.RangeRequest(key=b"/bare"))
    ours_s = bare_s = 0.0
    for number in range(rounds):
        keys = [[f"{number}/{group}/{index}" for index in range(GROUP)] for group in range(groups)]
        began = time.perf_counter()
        for group in keys:
            require(await store.commit(epoch, [Change("instance", key, VALUE) for key in group]))
        ours_s += time.perf_counter() - began
        began = time.perf_counter()
        for group in keys:
            await kv.Txn(_bare(group))
        bare_s += time.perf_counter() - began
    small_s = await _small(store, epoch, groups)
    await channel.close()
    await store.close()
    return ours_s, bare_s, small_s


async def _small(store: EtcdStore, epoch: int, commits: int) -> float:
    async def caller(number: int) -> None:
        for index in range(commits):
            require(await store.commit(epoch, [Change("instance", f"small/{number}", b"%d" % index + VALUE)]))

    began = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return time.perf_counter() - began


def _bare(keys: list[str]) -> pb.TxnRequest:
    puts = [pb.PutRequest(key=b"/bare/" + key.encode(), value=VALUE) for key in keys]
    return pb.TxnRequest(success=[pb.RequestOp(request_put=put) for put in puts])
