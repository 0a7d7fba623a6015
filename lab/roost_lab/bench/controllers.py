"""Fifty controllers watch ten thousand instances change: what the server spends on one change for one controller.

`python -m roost_lab.bench.controllers HOST:PORT TOKEN COUNT INSTANCES` is COUNT of them, in a process of their own: it
prints `connected` when all have the whole state, and a line of JSON when each has seen that many instances end.
"""

import asyncio
import json
import sys

from roost.model.states import InstanceState
from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import LONG_LEASE, Product, helper_process, next_line, services

BOUND_US = 60.0
TINY = {"agents": 4, "controllers": 2, "instances": 40}


def measure(agents: int = 100, controllers: int = 50, instances: int = 10_000) -> list[Figure]:
    with Product(agents=0, options=LONG_LEASE) as product, product.pretenders(agents):
        with Spent(product.pid) as alone:
            _churn(product, "alone", instances)
        arguments = (product.client.status().controllers[0], product.admin_token, controllers, instances)
        with helper_process("controllers", *arguments) as watching, Spent(product.pid) as spent:
            _churn(product, "watched", instances)
            answer = json.loads(next_line(watching))
    delivered = answer["changes"]
    detail = {
        "controllers": controllers, "delivered": delivered, "frames": answer["frames"],
        "seconds": round(spent.wall_s, 1), "without_controllers_s": round(alone.cpu_s, 2),
        "with_controllers_s": round(spent.cpu_s, 2),
        "added_us": round(max(0.0, spent.cpu_s - alone.cpu_s) / delivered * 1e6, 2),
    }  # fmt: skip
    return [figure("controller_change_us", spent.cpu_s / delivered * 1e6, "µs", bound=BOUND_US, **detail)]


def _churn(product: Product, name: str, instances: int) -> None:
    documents = services(name, instances)
    product.client.workloads.submit_batch(documents)
    product.wait_for_instances(InstanceState.RUNNING, instances)
    for document in documents:
        product.client.workloads.cancel("default", str(document["name"]))
    product.wait_for_instances(InstanceState.RUNNING, 0)
    product.wait_for_instances(InstanceState.STOPPING, 0)


async def _watch_all(address: str, token: str, count: int, instances: int) -> None:
    import grpc  # only in the process of the controllers

    answer = {"changes": 0, "frames": 0}
    connected = asyncio.Semaphore(0)
    channels = [
        grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(count)
    ]
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(_watch(channel, token, instances, connected, answer)) for channel in channels]
        for _ in watching:
            await connected.acquire()
        answer.update(changes=0, frames=0)
        print("connected", flush=True)
    print(json.dumps(answer), flush=True)


async def _watch(
    channel: object, token: str, instances: int, connected: asyncio.Semaphore, report: dict[str, int]
) -> None:  # fmt: skip
    from roost.wire import controller_pb2 as pb

    call = channel.unary_stream("/roost.controller.v1.Controller/Watch")(  # type: ignore[attr-defined]
        pb.WatchRequest().SerializeToString(), metadata=(("authorization", f"Bearer {token}"),)
    )
    ended: set[str] = set()
    is_whole = False
    async for data in call:
        frame = pb.WatchFrame.FromString(data)
        report["changes"] += len(frame.changes)
        report["frames"] += 1
        if is_whole:
            for change in frame.changes:
                if change.instance.state == "cancelled":
                    ended.add(f"{change.instance.name}.{change.instance.index}")
            if len(ended) >= instances:
                return
        elif frame.whole:
            is_whole = True
            connected.release()


if __name__ == "__main__":
    asyncio.run(_watch_all(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
