"""Virtual machines, checked from outside: their power, where they start, and that none is stopped without consent."""

from typing import NamedTuple

from roost.core.state.state import State
from roost.model.reasons.attempts import (
    NodeDraining,
    NodeReserved,
    PoolDraining,
    PoolFailed,
    Preempted,
    RetryRequested,
    UpdatedToVersion,
)
from roost.model.reasons.power import PowerRequested
from roost.model.reasons.reason import MovedToQueue
from roost.model.records.instance import Instance
from roost.model.states import InstanceState, Move, Power, WorkloadKind
from roost.sim.checks.records import Records
from roost.sim.world.world import SideChance, Wrong

TO_MOVE = (NodeDraining, PoolDraining, PoolFailed, NodeReserved, Preempted)
Key = tuple[str, int]  # of an instance, with the serial of its workload


class RealPower(NamedTuple):
    state: str
    serial: int  # of the last command that was carried out


class MachineTruth:
    """What the machines of all hosts really did."""

    def __init__(self, seed: int) -> None:
        self.chance = SideChance(f"machines at work {seed}")
        self.calm = False
        self.power: dict[int, RealPower] = {}  # by attempt
        self._carried_out: dict[int, int] = {}  # the last command of each attempt

    def reported(self, id: str, power: str, serial: int) -> None:
        before = self.power.get(int(id))
        if before is not None and serial < before.serial:
            raise Wrong(f"the machine of {id} went back from command {before.serial} to {serial}")
        self.power[int(id)] = RealPower(power, serial)

    def carries_out(self, id: str, serial: int) -> None:
        before = self._carried_out.get(int(id), 0)
        if serial <= before:
            raise Wrong(f"the machine of {id} carries out command {serial} after {before}")
        self._carried_out[int(id)] = serial


class MachineCheckers:
    def __init__(self, truth: MachineTruth, records: Records) -> None:
        self.truth = truth
        self._records = records
        self._homes: dict[Key, str] = {}  # where it ran last, as the disk had it
        self.forgetful = False

    def forgotten(self) -> None:
        self._homes.clear()

    def committed(self) -> None:
        for key, old, new in self._records.written("instance"):
            workload = self._records.workload(new.workload)
            if workload is None or workload.policy.kind != WorkloadKind.VM:
                if new.power is not None or new.home:
                    raise Wrong(f"{key} is no virtual machine, and has power or a home")
                continue
            identity = (key, workload.serial)
            is_new = old is None or old.token != new.token
            if is_new and new.token and not self.forgetful:
                self._starts_at_home(identity, new)
            if new.state == InstanceState.RUNNING:
                self._homes[identity] = new.node
            if not is_new and old is not None:
                self._power_goes_forward(key, old, new)
                self._is_not_moved(key, old, new)
                self._power_is_kept(key, old, new)
            self._power_is_true(new)

    def unfinished(self, state: State) -> list[str]:
        """What is still to be done once faults have ended."""
        left = []
        for instance in state.instances.values():
            power = instance.power
            is_up = instance.state == InstanceState.RUNNING and instance.node in state.nodes
            if not is_up or power is None or not state.liveness[instance.node].in_touch:
                continue
            real = self.truth.power.get(instance.token)
            if power.is_pending:
                left.append(f"{power.action} of {instance.key} is pending")
            elif real is not None and real.state != power.reported:
                left.append(f"{instance.key} is {power.reported} for the server, and really {real.state}")
        return left

    def _starts_at_home(self, identity: Key, new: Instance) -> None:
        home, spec = self._homes.get(identity), self._records.spec_of(new)
        if home is not None and spec.policy.is_homebound and new.node != home:
            raise Wrong(f"{new.key} was placed on {new.node}, and its disks are on {home}")

    def _power_goes_forward(self, key: str, old: Instance, new: Instance) -> None:
        if old.token != new.token or old.power is None or new.power is None or new.state != InstanceState.RUNNING:
            return
        if new.power.serial < old.power.serial or new.power.done < old.power.done:
            raise Wrong(f"the power of {key} went back from {old.power} to {new.power}")

    def _is_not_moved(self, key: str, old: Instance, new: Instance) -> None:
        is_stopped = old.state == InstanceState.RUNNING and new.state == InstanceState.STOPPING
        if not is_stopped or not new.requeue_after_stop or not isinstance(new.reason, TO_MOVE):
            return
        if self._records.spec_of(new).policy.move != Move.COLD:
            raise Wrong(f"{key} was stopped without consent: {new.reason}")

    def _power_is_kept(self, key: str, old: Instance, new: Instance) -> None:
        """A machine that was switched off is not switched on by a move. A user may have done so in the same commit."""
        if old.power is None or old.power.wanted == Power.RUNNING or new.state != InstanceState.QUEUED:
            return
        if old.state == InstanceState.QUEUED:
            return
        reasons = [line.reason for line in new.story[len(old.story) - len(new.story) :] or new.story[-3:]]
        causes = [reason.cause if isinstance(reason, MovedToQueue) else reason for reason in reasons]
        if any(isinstance(cause, RetryRequested | UpdatedToVersion | PowerRequested) for cause in causes):
            return
        if new.power is None or new.power.wanted == Power.RUNNING:
            raise Wrong(f"{key} was {old.power.wanted}, and is to run after it moved")

    def _power_is_true(self, new: Instance) -> None:
        """A command is done when its node has carried it out, and not before."""
        real = self.truth.power.get(new.token)
        if new.power is None or not new.power.done or new.state != InstanceState.RUNNING:
            return
        if real is None or real.serial < new.power.done:
            raise Wrong(f"{new.key} is reported to have done command {new.power.done}; really: {real}")
