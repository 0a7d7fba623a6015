"""Reasons about the power of a virtual machine: lines of its story, while its instance runs."""

from roost.model.reasons.subjects import BaseReason, Requested
from roost.model.states import Move, Power, PowerAction


class PowerRequested(Requested, frozen=True):
    """A user gave its machine a command, which its node has not carried out yet."""

    action: PowerAction = PowerAction.STOP
    grace_ms: int = 0


class PowerDone(Requested, frozen=True):
    """Its node carried out the last command."""

    action: PowerAction = PowerAction.STOP


class PowerFailed(Requested, frozen=True):
    """Its node could not carry out the last command."""

    action: PowerAction = PowerAction.STOP
    problem: str = ""


class PowerReported(BaseReason, frozen=True):
    """Its machine came into this power state by itself, without a command."""

    power: Power


class PowerKept(BaseReason, frozen=True):
    """Its machine begins switched off, because it was so before."""


class VmStays(BaseReason, frozen=True):
    """Its node is to be emptied, and its document does not let it be stopped for that."""

    move: Move


PowerReason = PowerRequested | PowerDone | PowerFailed | PowerReported | PowerKept | VmStays
