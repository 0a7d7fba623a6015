"""The cheapest eviction: as a search through all sets on each node would find it."""

import random
from itertools import combinations

import pytest

from roost.core.queue.eviction import (
    EXACT_SIZE,
    EXACT_UNITS,
    Eviction,
    PreemptionUnit,
    _Room,
    _Shares,
    cheapest_eviction,
    cost_of,
)
from roost.core.state.outcome import at_once
from roost.core.state.state import State
from roost.model.records.workload import Ask
from tests.core.scene import Scene, facts_of, job


def plain_fewest(room: _Room) -> list[int]:
    chosen: list[int] = []
    for index in range(len(room.units)):
        chosen.append(index)
        if room.fits(chosen):
            break
    for index in list(reversed(chosen)):
        rest = [other for other in chosen if other != index]
        if room.fits(rest):
            chosen = rest
    return chosen


def plain_search(state: State, ask: Ask, candidates: dict[str, list[PreemptionUnit]]) -> Eviction | None:
    found = []
    for node, units in candidates.items():
        room = _Room(state, node, ask, units, _Shares(state, ask))
        if not room.fits(range(len(units))):
            continue
        few = range(min(EXACT_UNITS, len(units)))
        sets = [
            [indexes for indexes in combinations(few, size) if room.fits(indexes)]
            for size in range(1, min(EXACT_SIZE, len(few)) + 1)
        ]
        enough = [
            [tuple(units[index] for index in indexes) for indexes in of_one_size] for of_one_size in sets if of_one_size
        ]
        chosen = min(enough[0], key=cost_of) if enough else tuple(units[index] for index in plain_fewest(room))
        found.append(Eviction(cost_of(chosen), node, chosen))
    return min(found, key=lambda eviction: eviction[:2], default=None)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_over_columns_finds_what_a_plain_search_finds(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene(preempt_margin=0, adopts=False)
    scene.checked = False
    gpus = {"more": {"gpu": 4_000}} if seed % 2 else {}
    for number in range(4):
        scene.hello(f"n{number}", facts=facts_of(cpu=chance.randint(4, 24), **gpus))
    for number in range(60):
        resources = {"cpu": chance.choice((0.5, 1, 2, 3)), "memory": chance.choice(("1GiB", "2GiB"))}
        if seed % 2 and chance.random() < 0.3:
            resources["gpu"] = chance.choice((1, 2))
        scene.submit(job(f"j{number}", resources=resources, priority=chance.randint(0, 3)))
    state = scene.state
    instances = {name: list(held.values()) for name, held in state.allocated.items() if held}
    candidates = {
        name: sorted(
            [PreemptionUnit(state.spec_of(one).policy.priority, (one,), (one,)) for one in held],
            key=lambda unit: (unit.priority, -unit.on_node[0].token),
        )
        for name, held in instances.items()
    }
    for cpu in (1_000, 2_000, 3_500, 6_000, 9_000):
        ask = Ask((("cpu", cpu), ("memory", 1 << 30)), gpu_count=seed % 2 and chance.randint(0, 2), gpu_milli=1_000)
        assert at_once(cheapest_eviction(state, ask, candidates)) == plain_search(state, ask, candidates)
