"""Checks of pipelines in the simulated world, fed by hand with what must not happen and with what may."""

from typing import Any

import msgspec
import pytest

from roost.core.state.state import State
from roost.model.protocol import Run
from roost.model.reasons.attempts import Approved, ConditionFalse
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.spec.submission import spec_of_document
from roost.model.states import InstanceState
from roost.ports.store import Change
from roost.sim.checks.oracle import Oracle
from roost.sim.checks.pipelines import PipelineCheckers, left_services
from roost.sim.checks.records import Records
from roost.sim.world.world import World, Wrong

TOKEN = 6  # an attempt that writes a result
SUCCEEDED, RESULT, VARIABLE = "needs.build.state == 'succeeded'", "needs.build.result != null", "env.GO == 'yes'"


def workload(name: str, serial: int = 1, *, raw: dict[str, Any] | None = None, **fields: Any) -> Workload:
    spec = spec_of_document({"name": name, "command": "work"} | (raw or {}))
    return Workload("default", name, spec.policy, spec.document, 1, serial, **fields)


class Checked:
    """A disk with a build, which has run once if `code` says how it ended."""

    def __init__(self, code: int | None = None) -> None:
        self.truth, self.records = Oracle(World(0)), Records()
        self.truth.capacity["n1"] = {"cpu": 4_000, "memory": 1 << 33}
        self.checks = PipelineCheckers(self.truth, self.records)
        build = workload("build")
        self.write(build)
        if code is not None:
            run = Run(TOKEN, build.key, 0, 1, build.document)
            self.truth.began("n1", run)
            self.truth.over("n1", run, "exited", code)

    def write(self, *records: Workload | Instance) -> None:
        kinds = {Workload: "workload", Instance: "instance"}
        changes = [Change(kinds[type(item)], item.key, msgspec.msgpack.encode(item)) for item in records]
        self.records.committed(changes)
        self.checks.committed()

    def place(self, new: Workload) -> None:
        self.write(new, Instance(new.key, 0, InstanceState.PLACED, 1, 9, "n1"))


def test_a_start_without_approval_is_noticed() -> None:
    raw = {"approve": {"role": "operator"}}
    checked = Checked()
    with pytest.raises(Wrong, match="is not approved"):  # whatever the record says: no client has approved it
        checked.place(workload("deploy", raw=raw, approval=Approved("mia")))
    checked = Checked()
    checked.checks.asks_approval("default/deploy")
    with pytest.raises(Wrong, match="is not approved"):
        checked.place(workload("deploy", raw=raw))
    checked = Checked()
    checked.checks.asks_approval("default/deploy")
    checked.place(workload("deploy", raw=raw, approval=Approved("mia")))


@pytest.mark.parametrize(
    ("rule", "code", "go", "is_true"),
    [
        (SUCCEEDED, 0, "no", True),
        (SUCCEEDED, 1, "yes", False),
        (SUCCEEDED, None, "yes", False),
        (RESULT, 1, "no", True),
        (RESULT, None, "yes", False),
        (VARIABLE, 1, "yes", True),
        (VARIABLE, 0, "no", False),
    ],
)
def test_a_start_against_its_condition_is_noticed(rule: str, code: int | None, go: str, is_true: bool) -> None:
    raw = {"if": rule, "env": {"GO": go}, "after": [{"workload": "build", "when": "finished"}]}
    checked = Checked(code)
    if is_true:
        checked.place(workload("deploy", raw=raw))
        return
    with pytest.raises(Wrong, match="was placed, and .* is false"):
        checked.place(workload("deploy", raw=raw))


def test_a_skip_against_its_condition_is_noticed() -> None:
    skipped = {"reason": ConditionFalse(VARIABLE), "unstarted_end_state": InstanceState.SKIPPED}
    Checked().write(workload("deploy", raw={"if": VARIABLE, "env": {"GO": "no"}}, **skipped))
    with pytest.raises(Wrong, match="was skipped"):
        Checked().write(workload("deploy", raw={"if": VARIABLE, "env": {"GO": "yes"}}, **skipped))


def test_a_superseded_run_that_goes_on_is_noticed() -> None:
    group = {"concurrency": {"group": "web", "cancel": True}}
    checked = Checked()
    checked.write(workload("a1", raw=group), workload("a2", raw=group))
    with pytest.raises(Wrong, match="goes on beside default/b1"):
        checked.write(workload("b1", 2, raw=group))
    checked = Checked()
    checked.write(workload("a1", raw=group), workload("other"))
    cancelled = workload("a1", raw=group, unstarted_end_state=InstanceState.CANCELLED)
    checked.write(cancelled, workload("b1", 2, raw=group))


def test_a_superseded_run_may_run_again_on_request() -> None:
    """One commit may have both: a server that was away takes the newer run, then the retry of the older one."""
    group = {"concurrency": {"group": "web", "cancel": True}}
    checked = Checked()
    checked.write(workload("a1", raw=group), workload("a2", raw=group))
    checked.checks.asks_retry("default/a1")
    with pytest.raises(Wrong, match="default/a2 goes on beside default/b1"):
        checked.write(workload("b1", 2, raw=group))
    checked.checks.asks_retry("default/a2")
    checked.write(workload("b1", 3, raw=group))


def test_a_service_that_outlives_its_owner_is_left() -> None:
    service = workload("db", raw={"kind": "service", "until": "test"})
    state = State()
    state.workloads = {service.key: service, "default/test": workload("test")}
    assert left_services(state) == []
    state.workloads["default/test"].finished_ms = 5
    assert left_services(state) == ["default/db goes on, and default/test is over"]
    del state.workloads["default/test"]
    assert left_services(state) == ["default/db goes on, and default/test is over"]
    service.finished_ms = 6
    assert left_services(state) == []
