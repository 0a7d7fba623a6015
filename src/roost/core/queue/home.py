"""Where virtual machines may run: they start again where their disks are, and leave only as their document allows."""

from roost.core.state.fleet import Fleet, Mask
from roost.core.state.queue import EquivalenceClass, PendingHead
from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.states import InstanceState, Move

PREFIX = "@"  # of a class whose instances start on one node alone; names of workloads do not begin with it


def home_of(state: State, head: PendingHead) -> str:
    instance = state.instances.get(head.key) if head.is_requeued else None
    return instance.home if instance is not None else ""


def home_class(workload: Workload, home: str) -> str:
    """The name of the class that an instance is in because of its home; empty: that of all equal asks."""
    return PREFIX + home if home and workload.policy.is_homebound else ""


def home_mask(fleet: Fleet, home: str, allowed: Mask | None) -> Mask | None:
    """Its home alone, if that is allowed."""
    if not home:
        return allowed
    mask = fleet.open & False
    row = fleet.row(home)
    if row >= 0 and (allowed is None or allowed[row]):
        mask[row] = True
    return mask


def only_home(fleet: Fleet, line: EquivalenceClass, fits: Mask) -> Mask:
    """The nodes for a class, of those that fit: of a class that is bound to a node, that one alone."""
    if not line.isolated.startswith(PREFIX):
        return fits
    mask = home_mask(fleet, line.isolated.removeprefix(PREFIX), fits)
    return fits if mask is None else mask


def stays(state: State, instance: Instance) -> bool:
    """Whether it must not be stopped in order to run elsewhere: a running virtual machine that was not given free."""
    return instance.state == InstanceState.RUNNING and state.spec_of(instance).policy.move != Move.COLD
