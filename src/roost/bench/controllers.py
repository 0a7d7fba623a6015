"""Fifty controllers watch ten thousand instances change: what a change costs the server for each who is told of it.

`python -m roost.bench.controllers HOST:PORT TOKEN COUNT INSTANCES` is COUNT of them, in a process of their own: it says
`connected` when all know everything, and a line of JSON when each has seen that many instances end.
"""

import asyncio
import json
import subprocess
import sys
import time

from roost.bench.figure import Figure, figure, tree_cpu_seconds
from roost.bench.product import LOOK_S, Product

AGENTS = 100
CONTROLLERS = 50
INSTANCES = 10_000
SHAPES = 20
BOUND_US = 60.0
WAIT_S_MAX = 180.0


def measure() -> list[Figure]:
    """All of the server's CPU while instances start and end everywhere, by the changes that controllers were told."""
    with Product(agents=0) as product, product.pretenders(AGENTS):
        alone = _churn(product, "alone")
        address = product.client.status().controllers[0]
        words = [sys.executable, "-m", "roost.bench.controllers", address, product.admin_token]
        words += [str(CONTROLLERS), str(INSTANCES)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watching:
            try:
                assert watching.stdout is not None
                if watching.stdout.readline().strip() != "connected":
                    raise RuntimeError("the controllers did not connect")
                before, began = tree_cpu_seconds(product.pid), time.monotonic()
                _churn(product, "watched")
                told = json.loads(watching.stdout.readline())
                used, took = tree_cpu_seconds(product.pid) - before, time.monotonic() - began
            finally:
                watching.kill()
    delivered = told["changes"]
    detail = {
        "controllers": CONTROLLERS, "delivered": delivered, "frames": told["frames"], "seconds": round(took, 1),
        "without_controllers_s": round(alone, 2), "with_controllers_s": round(used, 2),
        "added_us": round(max(0.0, used - alone) / delivered * 1e6, 2),
    }  # fmt: skip
    return [figure("controller_change_us", used / delivered * 1e6, "µs", bound=BOUND_US, **detail)]


def _churn(product: Product, name: str) -> float:
    """Start all instances and cancel them; the CPU of the server."""
    before = tree_cpu_seconds(product.pid)
    documents = [
        {"name": f"{name}-{shape}", "kind": "service", "count": INSTANCES // SHAPES, "command": "serve",
         "resources": {"cpu": f"{100 + shape}m"}}
        for shape in range(SHAPES)
    ]  # fmt: skip
    product.client.submit_batch(documents)
    _until(product, "running", INSTANCES)
    for document in documents:
        product.client.cancel("default", str(document["name"]))
    _until(product, "running", 0)
    _until(product, "stopping", 0)
    return tree_cpu_seconds(product.pid) - before


def _until(product: Product, state: str, number: int) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while product.client.status().instances.get(state, 0) != number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {number:,} instances are {state} after {WAIT_S_MAX} s")
        time.sleep(LOOK_S * 20)


async def _watch_all(address: str, token: str, count: int, instances: int) -> None:
    import grpc  # only in the process of the controllers

    told = {"changes": 0, "frames": 0}
    connected = asyncio.Semaphore(0)
    channels = [
        grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(count)
    ]
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(_watch(each, token, instances, connected, told)) for each in channels]
        for _ in watching:
            await connected.acquire()
        told.update(changes=0, frames=0)
        print("connected", flush=True)
    print(json.dumps(told), flush=True)


async def _watch(
    channel: object, token: str, instances: int, connected: asyncio.Semaphore, told: dict[str, int]
) -> None:  # fmt: skip
    from roost.wire import controller_pb2 as pb

    call = channel.unary_stream("/roost.v1.Controller/Watch")(  # type: ignore[attr-defined]
        pb.WatchRequest().SerializeToString(), metadata=(("authorization", f"Bearer {token}"),)
    )
    ended: set[str] = set()
    is_whole = False
    async for data in call:
        frame = pb.WatchFrame.FromString(data)
        told["changes"] += len(frame.changes)
        told["frames"] += 1
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
