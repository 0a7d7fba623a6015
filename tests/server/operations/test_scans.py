"""Lists with a filter: a page ends when it has held the loop for long enough, and goes on in the next."""

import asyncio
import time
from typing import Any

import pytest

from roost.model.records.workload import Ask, Policy, Workload
from tests.server.inprocess_server import InprocessServer, inprocess_server

pytestmark = pytest.mark.anyio

COUNT = 60_000


async def held_and_answer(made: InprocessServer, path: str) -> tuple[float, Any]:
    worst, asking = 0.0, asyncio.ensure_future(made.client.get(path))
    while not asking.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        worst = max(worst, time.thread_time() - began)
    assert asking.result().status_code == 200, asking.result().text
    return worst, asking.result().json()


@pytest.mark.parametrize(
    "path", ["/v1/workloads?state=failed&", "/v1/services?", "/v1/workloads/default/array/instances?state=failed&"]
)
async def test_a_filter_that_matches_nothing_scans_page_by_page(path: str) -> None:
    async with inprocess_server() as made:
        state = await made.engine.settled()
        for number in range(COUNT):
            workload = Workload("default", f"w{number}", Policy("job", Ask()), b"\x80", number + 1, 1, 1)
            state.workloads[workload.key] = workload
        array = Workload("default", "array", Policy("job", Ask()), b"\x80", COUNT + 1, 1, COUNT)
        state.workloads[array.key] = array
        after, pages = "", 0
        while True:
            held, page = await held_and_answer(made, f"{path}after={after}" if after else path.rstrip("?&"))
            assert held < 0.05
            pages += 1
            assert not page["items"]
            after = page["next"]
            if after is None:
                break
        assert pages > 1
