"""Workloads that would wait for each other forever are found before they are taken in."""

import pytest

from roost.core.dependencies.validate import affinity_cycle
from roost.core.state.outcome import at_once
from roost.model.events import WorkloadSpec
from roost.model.records.workload import Workload
from tests.core.scene import Scene, job, wanted


def waiting(*names: str, finished: str = "", **nears: str) -> dict[str, Workload]:
    """Workloads that were taken in: NAME="near these"."""
    found = {}
    for item in asked(*names, **nears).values():
        workload = Workload(item.project, item.name, item.policy, item.document, 1, 1)
        workload.finished_ms = 1 if item.name in finished.split() else 0
        found[workload.key] = workload
    return found


def asked(*names: str, **nears: str) -> dict:
    documents = [{"name": name, "command": "true"} for name in names]
    for name, near in nears.items():
        rules = [{"workload": part, "by": "zone"} for part in near.split()]
        documents.append({"name": name, "command": "true", "placement": {"near": rules}})
    return {f"default/{document['name']}": wanted(document) for document in documents}


def cycle(
    existing: dict[str, Workload], new: dict[str, WorkloadSpec], present: frozenset[str] = frozenset()
) -> list[str]:
    return at_once(affinity_cycle(existing, new, present))


def chain(text: str) -> list[str]:
    return [f"default/{name}" for name in text.split()]


def test_two_that_wait_for_each_other() -> None:
    assert cycle({}, asked(a="b", b="a")) == chain("a b a")
    assert cycle(waiting(a="b"), asked(b="a")) == chain("b a b")


def test_a_longer_chain_is_reported_from_where_it_comes_back() -> None:
    assert cycle(waiting(b="c", c="d x"), asked(a="b", d="b")) == chain("b c d b")


@pytest.mark.parametrize(
    ("existing", "new"),
    [
        ({}, {"a": "a"}),
        ({}, {"a": "b", "b": "c"}),
        ({"b": "c", "c": ""}, {"a": "b c"}),
        ({"b": "d", "c": "d", "d": ""}, {"a": "b c"}),
        ({"x": "y", "y": "x"}, {"a": "b"}),
    ],
)
def test_what_does_not_come_back_is_fine(existing: dict[str, str], new: dict[str, str]) -> None:
    assert cycle(waiting(**existing), asked(**new)) == []


def test_no_workload_waits_for_what_is_there_or_has_ended() -> None:
    assert cycle(waiting(a="b"), asked(b="a"), frozenset({"default/a"})) == []
    assert cycle(waiting(a="b", finished="a"), asked(b="a")) == []


def test_wishes_and_labels_make_no_chain() -> None:
    soft = {"name": "a", "command": "true", "placement": {"near": [{"workload": "b", "weight": 10}]}}
    label = {"name": "a", "command": "true", "placement": {"near": [{"label": "b"}]}, "labels": {"a": ""}}
    apart = {"name": "a", "command": "true", "placement": {"apart": [{"workload": "b"}]}}
    for document in (soft, label, apart):
        assert cycle(waiting(b="a"), {"default/a": wanted(document)}) == []


def test_a_very_long_chain_is_walked_once() -> None:
    names = [f"w{number}" for number in range(5_000)]
    existing = waiting(**dict(zip(names, names[1:], strict=False)))
    assert cycle(existing, asked(start="w0", w4999="other")) == []
    found = cycle(existing, asked(start="w0", w4999="w0"))
    assert len(found) == 5_001 and found[0] == found[-1]


def test_the_one_in_the_request_that_closes_the_chain_is_named() -> None:
    scene = Scene("a")
    near = [job(name, placement={"near": [{"workload": other}]}) for name, other in (("x", "y"), ("y", "x"))]
    done = scene.submit(job("free"), *near)
    assert "[1].placement" in str(done.replies[0].value.path)
    assert not scene.state.workloads


def test_an_instance_that_must_be_near_an_instance_that_is_apart_from_it_is_refused_in_any_order() -> None:
    near = job("x", placement={"near": [{"workload": "y", "by": "rack"}]})
    apart = job("y", placement={"apart": [{"workload": "x", "by": "zone"}]})
    for first, second in ((near, apart), (apart, near)):
        scene = Scene("a")
        scene.submit(first)
        done = scene.submit(second)
        assert done.replies[0].value.code == "contradiction" and len(scene.state.workloads) == 1
    scene = Scene("a")
    finer = job("y", placement={"apart": [{"workload": "x", "by": "node"}]})
    assert [done.key for done in scene.submit(near, finer).replies[0].value] == ["default/x", "default/y"], (
        "another node of the same rack will do"
    )
