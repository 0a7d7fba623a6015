"""Checks of virtual machines in the simulated world, fed by hand with what must not happen and with what may."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from roost.model.reasons.attempts import SUBMITTED, NodeDraining, RetryRequested
from roost.model.records.instance import Instance, PowerState
from roost.model.records.transition import InstanceTransition
from roost.model.records.workload import Workload
from roost.model.spec.submission import spec_of_document
from roost.model.states import InstanceState, Power, PowerAction
from roost.ports.store import Change
from roost.sim.checks.machines import MachineCheckers, MachineTruth
from roost.sim.checks.records import Records
from roost.sim.world.world import Wrong

TOKEN = 6
STOPPED = PowerState(Power.STOPPED, Power.STOPPED, PowerAction.STOP, 9, 9)


class Checked:
    """A disk with a machine that runs on n1."""

    def __init__(self, **fields: Any) -> None:
        self.truth, self.records = MachineTruth(0), Records()
        self.checks = MachineCheckers(self.truth, self.records)
        raw = {"name": "vm", "kind": "vm", "vm": {"kernel": "linux"}, "resources": {"memory": "64MiB"}} | fields
        spec = spec_of_document(raw)
        workload = Workload("default", "vm", spec.policy, spec.document, 1, 1)
        self.records.committed([Change("workload", workload.key, msgspec.msgpack.encode(workload))])
        self.last = Instance(workload.key, 0, InstanceState.RUNNING, 1, TOKEN, "n1", reason=SUBMITTED)
        self.write()

    def write(self, **fields: Any) -> None:
        """The record of the machine changes; a reason is also a line of its story."""
        before, self.last = self.last, msgspec.structs.replace(self.last, **fields)
        if self.last.reason is not before.reason:
            reason = self.last.reason
            assert reason is not None
            line = InstanceTransition(1, before.state, self.last.state, reason, 1)
            self.last = msgspec.structs.replace(self.last, story=(*self.last.story, line))
        self.records.committed([Change("instance", self.last.key, msgspec.msgpack.encode(self.last))])
        self.checks.committed()


def test_a_command_that_is_carried_out_twice_or_late_is_noticed() -> None:
    truth = MachineTruth(0)
    truth.carries_out("6", 8)
    truth.carries_out("6", 9)
    truth.carries_out("7", 9)
    for serial in (8, 9):
        with pytest.raises(Wrong, match=f"carries out command {serial} after 9"):
            truth.carries_out("6", serial)


def test_a_command_that_is_done_too_early_is_noticed() -> None:
    checked = Checked()
    checked.truth.reported(str(TOKEN), "running", 0)
    with pytest.raises(Wrong, match="is reported to have done command 9"):
        checked.write(power=STOPPED)
    checked = Checked()
    checked.truth.reported(str(TOKEN), "stopped", 9)
    checked.write(power=STOPPED)
    with pytest.raises(Wrong, match="went back"):
        checked.write(power=replace(STOPPED, serial=8, done=8))


def test_a_start_away_from_its_disks_is_noticed() -> None:
    checked = Checked()
    checked.write(state=InstanceState.QUEUED)
    with pytest.raises(Wrong, match="its disks are on n1"):
        checked.write(state=InstanceState.PLACED, token=7, attempt=2, node="n2")
    checked = Checked(move="cold")
    checked.write(state=InstanceState.QUEUED)
    checked.write(state=InstanceState.PLACED, token=7, attempt=2, node="n2")


def test_a_stop_without_consent_is_noticed() -> None:
    stop = {"state": InstanceState.STOPPING, "requeue_after_stop": True, "reason": NodeDraining("n1")}
    with pytest.raises(Wrong, match="stopped without consent"):
        Checked().write(**stop)
    Checked(move="cold").write(**stop)


def test_a_machine_that_a_move_switches_on_is_noticed() -> None:
    def stopped() -> Checked:
        checked = Checked(move="cold")
        checked.truth.reported(str(TOKEN), "stopped", 9)
        checked.write(power=STOPPED)
        return checked

    with pytest.raises(Wrong, match="is to run after it moved"):
        stopped().write(state=InstanceState.QUEUED, power=None, reason=NodeDraining("n1"))
    stopped().write(state=InstanceState.QUEUED, power=PowerState(Power.STOPPED), reason=NodeDraining("n1"))
    stopped().write(state=InstanceState.QUEUED, power=None, reason=RetryRequested("ann"))
