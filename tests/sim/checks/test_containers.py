"""Checks of containers in the simulated world, fed by hand."""

from typing import Any

import msgspec
import pytest

from roost.model.reasons.attempts import InputsFailed
from roost.model.reasons.reason import AttemptRetried
from roost.model.records.files import InputFailure, InputProblem
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.spec.submission import spec_of_document
from roost.model.states import InstanceState
from roost.ports.store import Change
from roost.sim.checks.containers import check_containers
from roost.sim.checks.records import Records
from roost.sim.world.engine import ABSENT, SimulatedEngine
from roost.sim.world.world import SideChance, Wrong


def checked(**fields: Any) -> None:
    records = Records()
    spec = spec_of_document({"name": "a", "image": "a:1"})
    workload = Workload("default", "a", spec.policy, spec.document, 1, 1)
    for kind, key, record in (
        ("workload", "default/a", workload), ("instance", "default/a.0", Instance("default/a", 0, **fields)),
    ):  # fmt: skip
        records.committed([Change(kind, key, msgspec.msgpack.encode(record))])
    check_containers(records)


def retried(*, is_final: bool) -> AttemptRetried:
    return AttemptRetried(InputsFailed(InputFailure(InputProblem.IMAGE_NOT_FOUND, is_final=is_final)), 2, 3)


def test_what_runs_names_its_image() -> None:
    checked(state=InstanceState.RUNNING, image="sha256:1")
    with pytest.raises(Wrong, match="of which image"):
        checked(state=InstanceState.RUNNING)


def test_final_failures_are_not_tried_again() -> None:
    checked(reason=retried(is_final=False))
    with pytest.raises(Wrong, match="no node can fetch"):
        checked(reason=retried(is_final=True))


def engine() -> SimulatedEngine:
    made = SimulatedEngine(SideChance(1), "0" * 12)
    made.calm = True
    return made


def test_the_engine_notices_what_must_not_be() -> None:
    made = engine()
    with pytest.raises(Wrong, match="without its image"):
        made.started(1, "a:1")
    assert made.pulled(1, "a:1", 5) is None and made.started(1, "a:1") == ""
    with pytest.raises(Wrong, match="live or of others"):
        made.sweep(lambda run: False)
    failure = made.pulled(2, ABSENT, 5)
    assert failure is not None and failure.is_final
    made.up = False
    assert made.started(3, "a:1") and made.pulled(3, "a:1", 5) is not None
