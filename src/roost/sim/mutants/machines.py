"""Rules of virtual machines switched off, one at a time; see core.py."""

from typing import Any

from msgspec.structs import replace

from roost.agent.actor import Actor
from roost.agent.power import MachinePower
from roost.core import orders
from roost.core.lifecycle import power, restarts
from roost.core.nodes import drain, pools
from roost.core.queue import place, projects
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.keeper.machines.power import PowerSwitch
from roost.keeper.rules import Rules
from roost.model.protocol import Order, PowerOrder
from roost.model.records.instance import Instance
from roost.sim.mutants.core import Rule, mutant, without

without(
    "machines_start_away_from_their_disks",
    "A virtual machine starts again wherever there is room.",
    (place, "home_of", lambda state, head: ""),
    (restarts, "home_class", lambda workload, home: ""),
)
without(
    "machines_are_stopped_without_consent",
    "Drains, pools and reservations stop a virtual machine like a job.",
    *((module, "stays", lambda state, instance: False) for module in (drain, pools, projects)),
)
without(
    "machines_are_lost_with_their_node",
    "A virtual machine that is pinned starts elsewhere when its node is lost.",
    (restarts, "_is_lost_with_node", lambda state, instance: True),
)
without(
    "moved_machines_are_switched_on",
    "A virtual machine that was switched off runs after it moved.",
    (restarts, "power_of_next", lambda power, reason: None),
)
without(
    "power_is_not_reported",
    "An agent does not report what became of a power command.",
    (Actor, "powered", lambda self, event, now: None),
)


@mutant(orders, "whole_assignment")
def lost_commands_are_not_sent_again(whole: Rule, state: State, name: str) -> tuple[Order, ...]:
    """A whole assignment has no power commands."""
    return tuple(order for order in whole(state, name) if not isinstance(order, PowerOrder))


@mutant(power, "_command")
def commands_are_done_when_they_are_given(
    command: Rule, state: State, out: Step, instance: Instance, *given: Any
) -> None:  # fmt: skip
    """A power command counts as carried out before its node has done so."""
    command(state, out, instance, *given)
    if instance.power is not None:
        instance.power = replace(instance.power, done=instance.power.serial)


def _again(self: PowerSwitch, serial: int, action: str, grace_ms: int, now: int) -> None:
    self.waiting.append((serial, action, grace_ms))
    self._next(now)


@mutant(
    Rules, "power", (MachinePower, "ordered", lambda self, order: True), (PowerSwitch, "command", _again)
)  # fmt: skip
def commands_are_carried_out_again(obey: Rule, self: Rules, order: dict[str, object], now: int) -> None:
    """A node carries out a power command each time that it is sent."""
    run = self.known.get(str(order["id"]))
    if run is not None:
        run.power_serial = 0
    obey(self, order, now)
