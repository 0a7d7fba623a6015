"""Shortlists remember and look only at what changed; a full scan by plain arithmetic must always say the same."""

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from roost.core.placement import score_cache as shortlists
from roost.core.placement.score_cache import ScoreCaches, cached_scores
from roost.core.placement.scorers import SCORE_MAX
from roost.core.placement.strategies import STRATEGIES, Strategy
from roost.core.state import fleet as fleets
from roost.core.state.allocation import Allocation
from roost.core.state.fleet import Fleet
from roost.model.records.node import Facts
from roost.model.records.workload import Ask
from tests.core.scene import Scene, facts_of, job

#: Strategies whose formula is written down here a second time.
PLAIN = ["best_fit", "first_fit", "least_loaded", "next_fit", "random", "round_robin", "worst_fit"]

WEIGHTS = {"cpu": 4, "memory": 4, "disk": 2}
ROW_BY_ROW = {"dot_product", "fgd", "balanced"}  # what they say of one row is looked at in test_scorers_gpu.py

# the plain way


def plain_scores(fleet: Fleet, ask: Ask, strategy: Strategy) -> list[int]:
    """The score of every node, one after the other; -1 where it is not eligible."""
    asked = dict(ask.resources)
    found = []
    for row, facts in enumerate(fleet.facts):
        total = facts.resources
        used = {name: int(column[row]) for name, column in fleet.used.items()}
        fits = all(total.get(name, 0) - used.get(name, 0) >= amount for name, amount in asked.items())
        suits = ask.driver in facts.drivers and (not ask.pools or facts.pool in ask.pools)
        if not (fits and suits and fleet.open[row]):
            found.append(-1)
        elif strategy.name in ROW_BY_ROW:
            found.append(strategy.score_one(fleet, ask, row))
        else:
            found.append(plain_score(strategy.name, total, used, asked))
    return found


def plain_score(strategy: str, total: dict[str, int], used: dict[str, int], asked: dict[str, int]) -> int:
    if strategy in ("best_fit", "worst_fit"):
        rest = {name: max(0, total.get(name, 0) - used.get(name, 0) - asked.get(name, 0)) for name in WEIGHTS}
        left = weighted(rest, total)
        return SCORE_MAX - left if strategy == "best_fit" else left
    return SCORE_MAX - weighted(used, total) if strategy == "least_loaded" else 0


def weighted(part: dict[str, int], total: dict[str, int]) -> int:
    shares = {name: min(SCORE_MAX, part.get(name, 0) * SCORE_MAX // total[name]) for name in WEIGHTS if total.get(name)}
    return sum(WEIGHTS[name] * share for name, share in shares.items()) // 10


def plain_pick(strategy: Strategy, scores: list[int], last: int, drawn: int) -> int:
    eligible = [row for row, score in enumerate(scores) if score >= 0]
    if not eligible:
        return -1
    if strategy.name == "random":
        return eligible[drawn % len(eligible)]
    if strategy.name in ("round_robin", "next_fit"):
        start = last + 1 if strategy.name == "round_robin" else last
        return next((row for row in eligible if row >= start), eligible[0])
    return max(eligible, key=lambda row: (scores[row], -row))


# the same over anything that can happen to a fleet

AMOUNTS = st.fixed_dictionaries(
    {"cpu": st.integers(0, 8)},
    optional={"memory": st.integers(0, 9), "disk": st.integers(0, 9), "gpu": st.integers(0, 2)},
)
NAMES = st.sampled_from([f"n{number}" for number in range(12)])
ASKS = st.builds(
    lambda amounts, driver, pools: Ask(tuple(sorted((name, n) for name, n in amounts.items() if n)), driver, pools),
    AMOUNTS,
    st.sampled_from(["process", "process", "container"]),
    st.sampled_from([(), (), ("ci",)]),
)
OFFERS = st.builds(
    lambda resources, drivers, pool: Facts(resources, drivers=drivers, pool=pool),
    AMOUNTS,
    st.sampled_from([("process",), ("process", "container")]),
    st.sampled_from(["default", "ci"]),
)
HAPPENINGS = st.one_of(
    st.tuples(st.just("join"), NAMES, OFFERS),
    st.tuples(st.just("join"), NAMES, OFFERS),
    st.tuples(st.just("leave"), NAMES, st.none()),
    st.tuples(st.just("open"), NAMES, st.sampled_from([True, True, True, False])),
    st.tuples(st.just("take"), NAMES, ASKS),
    st.tuples(st.just("take"), NAMES, ASKS),
    st.tuples(st.just("give"), NAMES, st.none()),
    st.tuples(st.just("choose"), st.sampled_from(PLAIN), st.integers(0, 1 << 64)),
)


def happen(fleet: Fleet, taken: dict[str, list[Ask]], what: str, name: str, detail: Any) -> None:
    if what == "join":
        fleet.join(name, detail)
        fleet.set_open(name, is_open=True, is_online=True)
    elif fleet.row(name) < 0:
        return
    elif what == "leave":
        fleet.leave(name)
        taken.pop(name, None)
    elif what == "open":
        fleet.set_open(name, is_open=detail, is_online=True)
    elif what == "take":
        fleet.take(name, Allocation(detail.resources))
        taken.setdefault(name, []).append(detail)
    elif taken.get(name):
        fleet.take(name, Allocation(taken[name].pop().resources), -1)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that logs are cut and shortlists thrown away all the time."""
    monkeypatch.setattr(fleets, "LOG_MAX", 6)
    monkeypatch.setattr(shortlists, "SCORE_CACHES_MAX", 4)


@pytest.mark.usefixtures("small_limits")
@given(asks=st.lists(ASKS, min_size=1, max_size=3), story=st.lists(HAPPENINGS, max_size=60))
def test_a_shortlist_says_what_a_full_scan_says(asks: list[Ask], story: list[tuple[str, str, Any]]) -> None:
    compare(asks, story)


@given(asks=st.lists(ASKS, min_size=1, max_size=3), story=st.lists(HAPPENINGS, max_size=60))
def test_a_shortlist_says_what_a_full_scan_says_with_long_memories(
    asks: list[Ask], story: list[tuple[str, str, Any]]
) -> None:
    compare(asks, story)


@pytest.mark.parametrize("unit", [1, (1 << 48) + 12_345], ids=["bytes", "pebibytes"])
@pytest.mark.parametrize("seed", range(4))
def test_a_shortlist_says_what_a_full_scan_says_in_a_large_fleet_over_a_long_time(seed: int, unit: int) -> None:
    chance = random.Random(seed)

    def ask() -> Ask:
        memory = chance.choice([0, 1, 3]) * unit // chance.choice([1, 7])
        amounts = {"cpu": chance.choice([0, 1, 2]), "memory": memory, "gpu": chance.choice([0, 0, 0, 1])}
        return Ask(tuple(sorted((name, amount) for name, amount in amounts.items() if amount)))

    def offer() -> Facts:
        large = {name: chance.randint(0, 16) * unit for name in ("memory", "disk")}
        return Facts({name: chance.randint(0, 16) for name in ("cpu", "gpu")} | large)

    names = [f"n{number:02}" for number in range(60)]
    story: list[tuple[str, str, Any]] = [("join", name, offer()) for name in names]
    details = {"join": offer, "leave": int, "open": lambda: chance.random() < 0.8, "take": ask, "give": int}
    for _ in range(2_000):
        what = chance.choices(list(details), [1, 1, 4, 40, 40])[0]
        story.append((what, chance.choice(names), details[what]()))
        if chance.random() < 0.3:
            story.append(("choose", chance.choice(PLAIN), chance.getrandbits(64)))
    compare([ask(), ask()], story)


def compare(asks: list[Ask], story: list[tuple[str, str, Any]]) -> None:
    fleet, score_caches = Fleet(), ScoreCaches()
    taken: dict[str, list[Ask]] = {}
    last = -1
    for what, name, detail in story:
        if what != "choose":
            happen(fleet, taken, what, name, detail)
            continue
        strategy = STRATEGIES[name]
        for ask in asks:
            shortlist = cached_scores(score_caches, ask, strategy)
            shortlist.refresh(fleet)
            plain = plain_scores(fleet, ask, strategy)
            assert shortlist.scores.tolist() == plain
            assert shortlist.eligible == len([score for score in plain if score >= 0])
            if plain:
                last = min(last, len(plain) - 1)
                row = strategy.pick(shortlist.scores, last, detail)
                assert row == plain_pick(strategy, plain, last, detail)
                last = max(row, last)


# whole passes against a greedy one

JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "cpu": st.integers(0, 5),
            "memory": st.integers(0, 3),
            "count": st.integers(1, 4),
            "priority": st.integers(0, 2),
            "strategy": st.sampled_from([name for name in PLAIN if name != "random"]),
        }
    ),
    min_size=1,
    max_size=8,
)


@given(jobs=JOBS, cpus=st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_a_pass_places_what_going_through_all_that_wait_one_by_one_would_place(
    jobs: list[dict[str, Any]], cpus: list[int]
) -> None:
    scene = Scene()
    for number, cpu in enumerate(cpus):
        scene.hello(f"n{number}", facts=facts_of(cpu=cpu, memory="4GiB"))
    fleet, cursors = copied(scene.state.fleet), {}
    expected = []
    waiting = [
        (-other_job["priority"], number, index)
        for number, other_job in enumerate(jobs)
        for index in range(other_job["count"])
    ]
    for _, number, index in sorted(waiting):
        item = jobs[number]
        resources = {"cpu": item["cpu"] * 1_000, "memory": item["memory"] << 30}
        ask = Ask(tuple(sorted((name, amount) for name, amount in resources.items() if amount)))
        strategy = STRATEGIES[item["strategy"]]
        scores = plain_scores(fleet, ask, strategy)
        row = plain_pick(strategy, scores, cursors.get(strategy.name, -1 if strategy.name == "round_robin" else 0), 0)
        if row >= 0:
            cursors[strategy.name] = row
            fleet.take(fleet.names[row], Allocation(ask.resources))
            expected.append((f"default/job-{number}.{index}", fleet.names[row]))
    done = scene.submit(*[
        job(
            f"job-{number}",
            count=other_job["count"],
            priority=other_job["priority"],
            resources={"cpu": other_job["cpu"], "memory": f"{other_job['memory']}GiB"},
            placement={"strategy": other_job["strategy"]},
        )
        for number, other_job in enumerate(jobs)
    ])  # fmt: skip
    assert [(placed.instance, placed.node) for placed in done.placed] == expected


def copied(fleet: Fleet) -> Fleet:
    """The same nodes, all free."""
    copy = Fleet()
    for name, facts in zip(fleet.names, fleet.facts, strict=True):
        copy.join(name, facts)
        copy.set_open(name, is_open=True, is_online=True)
    return copy
