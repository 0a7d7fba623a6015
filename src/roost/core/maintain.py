"""Maintenance: everything stays where it is until it ends. Agents are heard, ends are noted, what is asked for waits.

A lease that ends meanwhile gives nothing away: its node is suspect until the maintenance is over, and then has a whole
lease to come back. Work is only ever given away later than without maintenance, so nothing runs twice because of it.
"""

from heapq import heappush

from roost.core.drain import begin_to_empty
from roost.core.effects import Step
from roost.core.gang import members
from roost.core.move import settle_node
from roost.core.operate import frozen
from roost.core.pools import enforce
from roost.core.retry import regroup
from roost.core.state import State
from roost.model.events import Maintain
from roost.model.node import Node

#: Timers that mean nothing that maintenance holds up. Whatever is not named here waits until it is over.
GOES_ON = frozenset({"lease", "ready", "sweep", "after", "gone", "adopted", "shorter", "look", "flaky", "maintenance"})
NO_REASON = "no reason was given"


def maintain(state: State, out: Step, event: Maintain, now: int) -> None:
    """Begin maintenance, change its reason or its end, or end it. To end what is not there is fine."""
    meta = state.meta
    if event.on:
        meta.maintenance_since_ms = meta.maintenance_since_ms if frozen(state) else now
        meta.maintenance = event.reason or NO_REASON
        meta.maintenance_until_ms = now + event.for_ms if event.for_ms else 0
        if event.for_ms:
            state.at(meta.maintenance_until_ms, "maintenance", "")
        state.touch_meta()
    elif frozen(state):
        _end(state, out, now)
    out.reply(event.request, "on" if event.on else "off")


def look_at_maintenance(state: State, out: Step, key: str, now: int) -> None:
    """The time it was to last is over, unless it was changed since."""
    until = state.meta.maintenance_until_ms
    if frozen(state) and until and until <= now:
        _end(state, out, now)


def fall_silent(state: State, out: Step, node: Node, now: int) -> None:
    """A lease has ended while nothing may be given up: nothing is sent there, and it is looked at again."""
    state.contacts[node.name].silent = True
    words = f"not heard for {state.settings.lease_ms} ms; nothing is given up while there is maintenance"
    settle_node(state, out, node, words, now)
    state.lease_timers.add(node.name)
    state.at(now + state.settings.lease_ms, "lease", node.name)


def postpone(state: State, timer: tuple[int, str, str]) -> bool:
    """Put a timer aside that must not be heard now. True: it was."""
    if timer[1] in GOES_ON or not frozen(state):
        return False
    state.postponed.append(timer)
    return True


def _end(state: State, out: Step, now: int) -> None:
    """Every node gets a whole lease to be heard of again; then all that was held up takes its course."""
    meta = state.meta
    meta.maintenance, meta.maintenance_since_ms, meta.maintenance_until_ms = "", 0, 0
    state.touch_meta()
    state.moving_ms = now
    lease_until_ms = now + meta.lease_ms + state.settings.lease_margin_ms
    for node in state.nodes.values():
        if node.status != "lost":
            contact = state.contacts[node.name]
            contact.lease_until_ms = max(contact.lease_until_ms, lease_until_ms)
    for when_ms, kind, key in state.postponed:
        # Who could have started meanwhile is not turned away before it had a chance: nodes may need a lease to be back.
        heappush(state.timers, (lease_until_ms if kind == "queue" else when_ms, kind, key))
    state.postponed.clear()
    for node in list(state.nodes.values()):
        if node.draining:
            begin_to_empty(state, out, node, now)
    for pool in list(state.pools.values()):
        enforce(state, out, pool, now)
    for gang in list(state.gangs):
        _regroup(state, out, gang, now)


def _regroup(state: State, out: Step, gang: str, now: int) -> None:
    """Of a gang some ended and wait to start again, others run on: all of it starts together."""
    for workload in members(state, gang):
        for index in range(state.begun(workload)):
            instance = state.instances.get(f"{workload.key}.{index}")
            if instance is not None and instance.state == "queued" and instance.attempt:
                regroup(state, out, state.spec_of(instance), instance, now)
                return
