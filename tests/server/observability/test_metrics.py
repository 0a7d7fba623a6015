"""Counting: exact while it is cheap, now and then when it is not."""

import pytest

from roost.core.state.state import State
from roost.model.records.workload import Ask, Policy, Workload
from roost.server.observability import metrics
from roost.server.observability.metrics import CountCache, Histogram


def test_values_fall_into_buckets() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1] and histogram.total == pytest.approx(7.65)


def add(state: State, name: str) -> None:
    state.workloads[f"default/{name}"] = Workload("default", name, Policy("job", Ask()), b"", 1, 1, 5)
    state.revision += 1


def test_a_small_state_is_counted_whenever_it_changed() -> None:
    state, census = State(), CountCache()
    for number in range(1, 4):
        add(state, f"w{number}")
        assert census.of(state).instances == {"queued": 5 * number}
    assert census.of(state) is census.of(state)


def test_waiting_instances_are_counted_by_project() -> None:
    state = State()
    add(state, "w1")
    state.workloads["red/x"] = Workload("red", "x", Policy("job", Ask()), b"", 1, 1, 2)
    assert CountCache().of(state).projects == {"default": 5, "red": 2}


def test_a_large_state_is_counted_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "COUNT_CHEAP_S", 0.0)
    monkeypatch.setattr(metrics, "COUNT_SHARE", 1e9)
    state, census = State(), CountCache()
    add(state, "w1")
    assert census.of(state).waiting == 5
    add(state, "w2")
    assert census.of(state).waiting == 5
    monkeypatch.setattr(metrics, "COUNT_SHARE", 0)
    assert census.of(state).waiting == 10
