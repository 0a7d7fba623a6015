"""What cannot be waited for: refused before anything is taken in, with the field, and a circle with its chain."""

from typing import Any

import pytest

from tests.core.scene import Scene, job, outcome, service


def after(name: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"workload": name} | fields]


REFUSED = [
    (job("a", after=["missing"]), "422 invalid: after[0].workload: there is no workload missing; submit it first or in "
     "the same request"),
    (job("a", after=after("db", when="succeeded")), "422 invalid: after[0].when: db is a service, which does not end "
     "by itself; wait until it has `started`"),
    (job("a", after=["build", {"workload": "db", "when": "finished"}]), "422 invalid: after[1].when: db is a service, "
     "which does not end by itself; wait until it has `started`"),
    (job("a", after=["nightly"]), "422 invalid: after[0].workload: nightly runs by a schedule and never ends; wait for "
     "one of its runs"),
    (job("a", count=2, after=after("build", each=True)), "422 invalid: after[0].each: build has 1 elements, a has 2; "
     "one for one they must be as many"),
    (job("a", after=after("db", each=True)), "422 invalid: after[0].each: db is a service; only elements of a job are "
     "waited for one by one"),
    (service("a", after=after("build", each=True)), "422 invalid: after[0].each: only the elements of a job wait for "
     "one each, not a service"),
    (job("a", gang=True, after=after("build", each=True)), "422 invalid: after[0].each: the elements of a gang start "
     "together, not each after its own"),
    (job("a", schedule="@daily", gang={"name": "g", "size": 2}), "422 invalid: gang: the runs of a schedule cannot "
     "share a gang with others; `gang: true` is for each run"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), REFUSED)
def test_what_cannot_be_waited_for_is_refused(document: dict[str, Any], message: str) -> None:
    scene = Scene("n")
    scene.submit(job("build"), service("db"), job("nightly", schedule="@daily"))
    assert outcome(scene.submit(document)) == {"replies": [message]}
    assert "default/a" not in scene.state.workloads


def test_a_circle_is_refused_with_its_chain() -> None:
    scene = Scene("n")
    done = outcome(scene.submit(job("c"), job("a", after=["b"]), job("b", after=["c", "a"])))
    message = "each waits for the next, so none would ever start: default/a after default/b after default/a"
    assert done == {"replies": [f"422 after_cycle: [1].after: {message}"]}
    assert not scene.state.workloads


def test_a_circle_through_an_applied_change_is_refused() -> None:
    scene = Scene("n", cpu=1)
    scene.submit(job("busy"), job("a"), job("b", after=["a"]))
    done = outcome(scene.submit(job("a", after=["b"]), same_ok=True))
    message = "each waits for the next, so none would ever start: default/a after default/b after default/a"
    assert done == {"replies": [f"422 after_cycle: after: {message}"]}
