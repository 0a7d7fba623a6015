"""What plug-ins may add to the core, and what is refused."""

from collections.abc import Iterator

import numpy as np
import pytest

from roost.core.placement.filters import DYNAMIC, STATIC, DynamicFilter, StaticFilter
from roost.core.placement.registry import Registry
from roost.core.placement.scorers import idleness
from roost.core.placement.strategies import STRATEGIES, Strategy, pick_best, strategy_named
from roost.model.errors import Invalid
from tests.core.fleet_builder import FleetBuilder
from tests.core.scene import Scene, job


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    strategies, static, dynamic = dict(STRATEGIES), list(STATIC), list(DYNAMIC)
    yield
    STRATEGIES.clear()
    STRATEGIES.update(strategies)
    STATIC[:] = static
    DYNAMIC[:] = dynamic


def pick_last(scores: np.ndarray, last: int, drawn: int) -> int:
    """The last row that will do."""
    found = np.flatnonzero(scores >= 0)
    return int(found[-1]) if len(found) else -1


ODD_NAMES = StaticFilter(
    "odd_names",
    lambda fleet, ask: np.array([len(name) % 2 == 1 for name in fleet.names], np.bool_),
    lambda fleet, ask, failing: "odd_names: its name is even",
)
NOT_FULL = DynamicFilter(
    "one_each",
    lambda fleet, ask: fleet.used["cpu"] == 0,
    lambda fleet, ask, failing: "one_each: an instance is there",
    lambda fleet, ask, row: fleet.used["cpu"].item(row) == 0,
)


def test_what_is_added_counts_once_it_is_installed() -> None:
    registry = Registry()
    registry.add_strategy(Strategy("last_fit", (), pick_last))
    registry.add_filter(ODD_NAMES)
    registry.add_filter(NOT_FULL)
    assert "last_fit" not in STRATEGIES and ODD_NAMES not in STATIC and NOT_FULL not in DYNAMIC
    registry.install()
    builder = FleetBuilder("a", "bb", "ccc", "dddd")
    assert builder.places("x", 3, strategy="last_fit") == ["ccc", "a", ""]
    assert builder.blockers("x") == {"odd_names: its name is even": 2, "one_each: an instance is there": 2}
    builder.end("x")
    assert builder.place("x") == "ccc"


def test_servers_and_workloads_ask_for_it_by_name() -> None:
    registry = Registry()
    registry.add_strategy(Strategy("last_fit", (), pick_last))
    registry.install()
    scene = Scene("a", "b", strategy="last_fit")
    scene.submit(job("x"), job("y", placement={"strategy": "first_fit"}))
    assert scene.where("x.0", "y.0") == ["b", "a"]


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Strategy("best_fit", (), pick_best), "there is a strategy of this name already"),
        (Strategy("a b", (), pick_best), "a name is made of"),
        (Strategy("mine", ((object(), 1),), pick_best), "score and score_one"),
        (Strategy("mine", ((idleness, 0),), pick_best), "a weight is 1 to 100"),
        (Strategy("mine", ((idleness, 0.5),), pick_best), "a weight is 1 to 100"),
        (Strategy("mine", (), None), "pick must be a function"),
        (lambda: None, "not a Strategy"),
    ],
)
def test_a_strategy_that_makes_no_sense_is_refused(strategy: Strategy, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Registry().add_strategy(strategy)


def test_names_are_had_once() -> None:
    registry = Registry()
    registry.add_strategy(Strategy("mine", (), pick_best))
    registry.add_filter(ODD_NAMES)
    with pytest.raises(Invalid, match="strategy mine: there is a strategy of this name already"):
        registry.add_strategy(Strategy("mine", (), pick_last))
    for name in ("odd_names", "taints", "gpu", "spread"):
        with pytest.raises(Invalid, match="there is a filter of this name already"):
            registry.add_filter(NOT_FULL._replace(name=name))
    with pytest.raises(Invalid, match="not a Static or Dynamic"):
        registry.add_filter(("x", None, None))


def test_a_strategy_that_is_gone_is_stood_in_for_by_the_default() -> None:
    assert strategy_named("last_fit").name == "least_loaded"
    assert strategy_named("best_fit").name == "best_fit"
    registry = Registry()
    registry.add_strategy(Strategy("last_fit", (), pick_last))
    registry.install()
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("x", count=3, placement={"strategy": "last_fit"}))
    assert scene.where("x.0", "x.1") == ["b", "a"]
    del STRATEGIES["last_fit"]
    scene.restart()
    scene.hello("a", "x.1", cpu=1)
    scene.hello("b", "x.0", cpu=1)
    scene.running("x.0")
    scene.ended("x.0")
    assert scene.instance("x.2").decision.strategy == "least_loaded"
