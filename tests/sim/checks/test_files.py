"""Checks of files in the simulated world, fed by hand with what must not happen and with what may."""

from typing import Any

import msgspec
import pytest

from roost.model.protocol import Run
from roost.model.records.files import InputFiles, OutputGap, OutputProblem, Outputs, RunInput
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.spec.submission import spec_of_document
from roost.model.states import InstanceState
from roost.ports.store import Change
from roost.sim.checks.files import FileCheckers
from roost.sim.checks.oracle import ObservedEnd, Oracle
from roost.sim.checks.records import Records
from roost.sim.world.file_sets import parts_of, set_of
from roost.sim.world.world import World, Wrong

TOKEN = 7
RAW: dict[str, Any] = {"name": "a", "command": "work", "outputs": [{"path": "*", "required": True}]}


class Checked:
    """A workload on disk, and one attempt that has ended with exit code 0."""

    def __init__(self) -> None:
        self.truth, self.records = Oracle(World(0)), Records()
        self.checks = FileCheckers(self.truth, self.records)
        self.left = self.truth.left(TOKEN, ())
        assert self.left.files is not None
        self.stored = {*parts_of(self.left.files.digest)}
        self.checks.stored = self.stored
        self.truth.endings[TOKEN] = ObservedEnd("exited", 0, 5)
        spec = spec_of_document(RAW)
        self.workload = Workload("default", "a", spec.policy, spec.document, 1, 1)
        self.write("workload", "default/a", self.workload)

    def write(self, kind: str, key: str, record: Any) -> None:
        self.records.committed([Change(kind, key, msgspec.msgpack.encode(record))])
        self.checks.committed()

    def ended(self, outputs: Outputs | None, state: InstanceState = InstanceState.SUCCEEDED, **fields: Any) -> None:
        instance = Instance("default/a", 0, state, 1, TOKEN, outputs=outputs, **{"log_size": 3} | fields)
        self.write("instance", "default/a.0", instance)


def test_outputs_of_the_attempt_are_fine_and_so_is_a_reason_why_there_are_none() -> None:
    Checked().ended(Checked().left)
    Checked().ended(Outputs(None, (OutputGap(OutputProblem.NOT_STORED),)))
    Checked().ended(None, InstanceState.RUNNING, log_size=None)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (None, "has no outputs"),
        (Outputs(), "which attempt 7 has not left"),
        (Outputs(None, (OutputGap(OutputProblem.MISSING, "*", required=True),)), "has succeeded without"),
        (Outputs(set_of("of another")), "are not in the blob store"),
    ],
)
def test_outputs_that_are_not_of_the_attempt_are_noticed(outputs: Outputs | None, message: str) -> None:
    with pytest.raises(Wrong, match=message):
        Checked().ended(outputs)


def test_outputs_before_the_end_are_noticed() -> None:
    checked = Checked()
    with pytest.raises(Wrong, match="has not ended"):
        checked.ended(checked.left, InstanceState.RUNNING, log_size=None)


def test_a_named_blob_that_is_deleted_is_noticed() -> None:
    checked = Checked()
    checked.ended(checked.left)
    checked.checks.deleted(parts_of(set_of("sent").digest)[1])
    for part in sorted(checked.stored):
        with pytest.raises(Wrong, match="was deleted, and a record names"):
            checked.checks.deleted(part)


def test_a_run_without_its_input_or_with_one_that_no_record_names_is_noticed() -> None:
    checked, use = Checked(), spec_of_document({"name": "b", "command": "x", "inputs": [{"workload": "a"}]})
    assert checked.left.files is not None
    run = Run(9, "default/b", 0, 1, use.document)
    with pytest.raises(Wrong, match="without its input"):
        checked.checks.ordered(run)
    run = msgspec.structs.replace(run, inputs=(RunInput("", checked.left.files.digest),))
    with pytest.raises(Wrong, match="which no record names"):
        checked.checks.ordered(run)
    given = (InputFiles("default/a", checked.left.files),)
    workload = Workload("default", "b", use.policy, use.document, 1, 2, input_files=given)
    checked.write("workload", "default/b", workload)
    checked.checks.ordered(run)
    checked.write("instance", "default/b.0", Instance("default/b", 0, InstanceState.PLACED, 1, 9))
    with pytest.raises(Wrong, match="are not in the blob store"):
        checked.checks.fetch_failed(run)
