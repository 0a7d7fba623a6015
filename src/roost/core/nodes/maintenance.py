"""Maintenance: nothing is started or stopped until it ends. Reports are recorded, and requests wait.

A node whose lease ends meanwhile is suspect until the maintenance ends, and then has a whole lease to reconnect. Work
is rescheduled only later than without maintenance, so nothing runs twice because of it.
"""

from heapq import heappush

from roost.core.lifecycle.restarts import regroup
from roost.core.nodes.drain import move_away
from roost.core.nodes.pools import enforce
from roost.core.queue.gang import members
from roost.core.state.outcome import Step
from roost.core.state.state import State, in_maintenance
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of
from roost.core.transitions import refresh_status
from roost.model.events import Maintain
from roost.model.reasons.nodes import HeartbeatsMissing
from roost.model.records.node import Node
from roost.model.spec.units import show_duration
from roost.model.states import ABSENT, InstanceState

NO_REASON = "no reason was given"


def maintain(state: State, out: Step, event: Maintain, now: int) -> None:
    """Begin maintenance, change its reason or its end, or end it. Ending it twice is fine."""
    meta = state.meta
    if event.on:
        meta.maintenance_since_ms = meta.maintenance_since_ms if in_maintenance(state) else now
        meta.maintenance = event.reason or NO_REASON
        meta.maintenance_until_ms = now + event.for_ms if event.for_ms else 0
        if event.for_ms:
            state.at(meta.maintenance_until_ms, TimerKind.MAINTENANCE, "")
        state.touch_meta()
    elif in_maintenance(state):
        _end(state, out, now)
    out.reply(event.request, "on" if event.on else "off")


def check_maintenance(state: State, out: Step, key: str, now: int) -> None:
    until = state.meta.maintenance_until_ms
    if in_maintenance(state) and until and until <= now:
        _end(state, out, now)


def mark_out_of_touch(state: State, out: Step, node: Node, now: int) -> None:
    """A lease ended during maintenance: nothing is sent to the node, and its timer is set again."""
    state.liveness[node.name].silent = True
    refresh_status(state, out, node, HeartbeatsMissing(state.lease_ms, in_maintenance=True), now)
    state.lease_timers.add(node.name)
    state.at(now + state.lease_ms, TimerKind.LEASE, node.name)


def _end(state: State, out: Step, now: int) -> None:
    """Every node gets a whole lease to reconnect; then all that was held up takes its course."""
    meta = state.meta
    meta.maintenance, meta.maintenance_since_ms, meta.maintenance_until_ms = "", 0, 0
    state.touch_meta()
    state.active_since_ms = now
    lease_until_ms = now + meta.lease_ms + state.settings.lease_margin_ms
    for node in state.nodes.values():
        if node.status not in ABSENT:
            contact = state.liveness[node.name]
            contact.lease_until_ms = max(contact.lease_until_ms, lease_until_ms)
    for when_ms, kind, key in state.postponed:
        # A queue timeout is enforced one lease later, because nodes may need a lease to reconnect.
        heappush(state.timers, (lease_until_ms if kind == TimerKind.QUEUE else when_ms, kind, key))
    state.postponed.clear()
    for node in list(state.nodes.values()):
        if node.draining:
            move_away(state, out, node, now)
    for pool in list(state.pools.values()):
        enforce(state, out, pool, now)
    for gang in list(state.gangs):
        _regroup(state, out, gang, now)


def _regroup(state: State, out: Step, gang: str, now: int) -> None:
    """Members of a gang that ended meanwhile are pending, others still run: all of it starts together."""
    for workload in members(state, gang):
        for instance in instances_of(state, workload):
            if instance.state == InstanceState.QUEUED and instance.attempt:
                regroup(state, out, state.spec_of(instance), instance, now)
                return


def maintenance_text(state: State) -> str:
    since = show_duration(max(state.now_ms - state.meta.maintenance_since_ms, 0))
    return f"maintenance since {since}: {state.meta.maintenance}"
