"""Why: for what waits, every blocker counted over nodes; for what was placed, the candidates with their scores.

This is the short answer, which anybody may ask for at any time; `advise` adds what would help, and when.
"""

from typing import Any

import msgspec

from roost.core.blockers import CODES, Blocker, blockers_of
from roost.core.filters.resources import amount_words
from roost.core.scorers import ONE
from roost.core.service_words import service_words
from roost.core.state import State
from roost.core.ticks import when_words
from roost.core.verdict import waiting_words
from roost.model.errors import NotFound
from roost.model.instance import Instance
from roost.model.schedule import next_tick
from roost.model.units import show_bytes, show_cpu, show_duration
from roost.model.workload import Workload


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to `why`: as data, and in words."""

    instance: str
    state: str
    words: str
    code: str = ""
    blockers: tuple[Blocker, ...] = ()
    node: str = ""
    strategy: str = ""
    eligible: int = 0
    considered: int = 0
    candidates: tuple[tuple[str, float], ...] = ()


def why(state: State, workload_key: str, index: int | None = None) -> Why:
    """Why an instance is where it is; without an index, the first one that waits, or else the first."""
    workload = state.workloads.get(workload_key)
    if workload is None:
        raise NotFound(f"there is no workload {workload_key}")
    if index is None:
        index = _interesting(state, workload_key, state.begun(workload), workload.count)
    if not 0 <= index < max(workload.count, state.begun(workload), 1):
        raise NotFound(f"{workload_key} has instances 0 to {workload.count - 1}, not {index}")
    key = f"{workload_key}.{index}"
    instance = state.instances.get(key)
    if instance is None and index < state.begun(workload):
        words = f"{key} was submitted to an earlier server, and no agent has spoken of it to this one"
        return Why(key, "lost", words, code="unknown")
    current = instance.state if instance else workload.rest or "queued"
    if current == "queued":
        return _why_waiting(state, key, workload, instance)
    if instance is None:
        return Why(key, current, f"{key} is {current}: {workload.cause}", code=current)
    return _why_placed(state, instance)


def decision_line(instance: str, node: str, strategy: str, resources: tuple[tuple[str, int, int], ...]) -> str:
    """The decision as one readable line."""
    return f"placed {instance} on {node} by {strategy}: " + ", ".join(
        used_words(name, used, total) for name, used, total in resources
    )


def used_words(name: str, used: int, total: int) -> str:
    """`cpu 12/16`, `memory 24GiB/32GiB`."""
    if name in ("cpu", "gpu"):
        return f"{name} {show_cpu(used)}/{show_cpu(total)}"
    if name in ("memory", "disk"):
        return f"{name} {show_bytes(used)}/{show_bytes(total)}"
    return f"{name} {used}/{total}"


def node_report(state: State, name: str) -> dict[str, Any]:
    """A node as data: status, each resource used and total, what it runs."""
    node = state.nodes.get(name)
    if node is None:
        raise NotFound(f"there is no node {name}")
    row = state.fleet.row(name)
    used = {each: int(state.fleet.used[each][row]) for each in node.facts.resources}
    running = [state.held[name][token] for token in sorted(state.held[name])]
    return {"node": node, "used": used, "running": running, "contact": state.contacts[name]}


def _why_waiting(state: State, key: str, workload: Workload, instance: Instance | None) -> Why:
    if instance is not None and instance.ready_ms > state.now_ms:
        pause = show_duration(instance.ready_ms - state.now_ms)
        return Why(key, "queued", f"{key} waits {pause} before its next attempt: {instance.cause}", code="backoff")
    first = _why_not_yet(state, key, workload, instance)
    if first is not None:
        return first
    ask = workload.policy.ask
    blocked = blockers_of(state, workload)
    needs = ", ".join(amount_words(*each) for each in ask.resources)
    if blocked.code == "placeable":
        return Why(key, "queued", f"{key} is about to be placed (needs {needs})", code="placeable")
    told = {
        "maintenance": f"{key} (needs {needs}) waits until it is over: {blocked.words()}",
        "no_nodes": f"{key} waits because no node is online; start one with `roost agent`",
        "unsatisfiable": f"{key} (needs {needs}) can never run on this fleet: {blocked.words()}",
        "insufficient_resources": f"{key} (needs {needs}) waits for room: {blocked.words()}",
        "quota_exceeded": f"{key} (needs {needs}) waits for its project's quota: {blocked.words()}",
    }
    return Why(key, "queued", told[blocked.code], code=blocked.code, blockers=blocked.blockers)


def _why_not_yet(state: State, key: str, workload: Workload, instance: Instance | None) -> Why | None:
    """What has to come before room matters at all: other workloads, or a tick."""
    schedule = workload.policy.schedule
    if schedule is not None:
        tick = next_tick(schedule, workload.tick_ms)
        when = f"at {when_words(schedule, tick)}" if tick is not None else "never again"
        last = f"; last time: {workload.cause}" if workload.cause else ""
        words, code = f"runs by its schedule, next {when}{last}", "schedule"
    elif instance.waits if instance is not None else workload.waits:
        words, code = waiting_words(state, workload, int(key.rpartition(".")[2])), "after"
    else:
        return None
    return Why(key, "queued", f"{key} {words}", code=code, blockers=(Blocker(code, words, 0, CODES[code]),))


def _why_placed(state: State, instance: Instance) -> Why:
    decision = instance.decision
    where = f" on {instance.node}" if instance.node else ""
    words = f"{instance.key} is {instance.state}{where}: {instance.cause}"
    more = service_words(state, instance)
    words += f"; {more}" if more else ""
    if decision is None:
        return Why(instance.key, instance.state, words, node=instance.node)
    taken, score = decision.candidates[0]
    words += f"; {decision.strategy} chose {taken} with {score / ONE:.3f}"
    others = ", ".join(f"{name} {score / ONE:.3f}" for name, score in decision.candidates[1:])
    words += f" over {others}" if others else ""
    words += f" ({decision.eligible} of {decision.considered} nodes were eligible)"
    return Why(
        instance.key,
        instance.state,
        words,
        node=instance.node,
        strategy=decision.strategy,
        eligible=decision.eligible,
        considered=decision.considered,
        candidates=tuple((name, score / ONE) for name, score in decision.candidates),
    )


def _interesting(state: State, key: str, begun: int, count: int) -> int:
    for index in range(begun):
        instance = state.instances.get(f"{key}.{index}")
        if instance is not None and instance.state == "queued":
            return index
    return begun if begun < count else 0
