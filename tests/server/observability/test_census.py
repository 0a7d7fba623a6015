"""Counts that are kept by changes are those of the state, whatever happened."""

import asyncio
import random
import time
from collections import Counter
from typing import Any

import pytest

from roost.core.state.state import State
from roost.model.records.workload import Ask, Policy, Workload
from roost.model.states import InstanceState
from roost.ports.store import Change
from roost.server.observability import census
from roost.server.observability.census import Census
from roost.server.views.work import counts_of, workload_state
from tests.server.inprocess_server import InprocessServer, inprocess_server

pytestmark = pytest.mark.anyio


def counted(state: State) -> tuple[Any, Any, Any]:
    """The same by looking at everything."""
    workloads: Counter[InstanceState] = Counter()
    instances: Counter[InstanceState] = Counter()
    projects: Counter[str] = Counter()
    for key, workload in state.workloads.items():
        progress = state.progress.get(key)
        every = counts_of(workload, progress.placed_count if progress else 0, progress.counts if progress else {})
        workloads[workload_state(workload, every)] += 1
        instances.update(every)
        projects[workload.project] += every.get(InstanceState.QUEUED, 0)
    return workloads, instances, dict(projects)


async def agrees(made: InprocessServer) -> None:
    state = await made.engine.settled()
    found = await made.perform.census.of(state)
    assert (found.workloads, found.instances, found.projects) == counted(state)
    assert found.waiting == found.instances.get(InstanceState.QUEUED, 0)


@pytest.mark.parametrize("uncounted", [0, 1_000])
async def test_counts_follow_the_life_of_workloads(monkeypatch: pytest.MonkeyPatch, uncounted: int) -> None:
    monkeypatch.setattr(census, "UNCOUNTED_MAX", uncounted)
    monkeypatch.setattr(census, "COUNTED_AT_ONCE", 1)
    chance = random.Random(7)
    async with inprocess_server() as made:
        agent = await made.agent("n1", cpu=4_000)
        for number in range(12):
            project = chance.choice(["red", "blue"])
            document = {"name": f"w{number}", "project": project, "command": "true", "count": chance.randint(1, 3)}
            await made.post("/v1/workloads", document | {"retention": "1ms"}, 201)
            runs = agent.orders()
            if chance.random() < 0.6:
                await agent.starts(runs[-1])
                await agent.ends(runs[-1], code=chance.choice([0, 1]))
            if chance.random() < 0.3:
                answer = await made.client.post(f"/v1/workloads/{project}/w{number}/cancel", json={})
                assert answer.status_code in (200, 404), "one that has ended may be removed already"
            if number % 3 == 0:
                await agrees(made)
        await agrees(made)
        status = (await made.client.get("/v1/status")).json()
        assert status["workloads"] == counted(made.engine.state)[0]


async def test_a_large_state_that_was_just_loaded_is_counted_in_slices() -> None:
    state = State()
    for number in range(20_000):
        workload = Workload("default", f"w{number}", Policy("job", Ask()), b"", 1, 1, 5)
        state.workloads[workload.key] = workload
    kept = Census()
    kept.take(state, [Change("workload", "default/w1", b"")])
    asked, worst = asyncio.ensure_future(kept.of(state)), 0.0
    while not asked.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        worst = max(worst, time.thread_time() - began)
    assert asked.result().instances == {"queued": 100_000}
    assert worst < 0.05
    del state.workloads["default/w1"]
    kept.take(state, [Change("workload", "default/w1", None)])
    began = time.thread_time()
    assert (await kept.of(state)).instances == {"queued": 99_995}
    assert time.thread_time() - began < 0.005
