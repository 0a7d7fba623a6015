"""A drain that is only tried: where everything on a node would go, as the core places it on a copy of the state."""

import msgspec

from roost.core.explain.plan import PASSES_MAX
from roost.core.explain.why import why
from roost.core.lifecycle.restarts import attempts_on, requeue
from roost.core.queue.home import stays
from roost.core.queue.place import place
from roost.core.state.outcome import Step, at_once
from roost.core.state.state import State, overlay
from roost.core.transitions import refresh_status, stop
from roost.model.reasons.attempts import NodeDraining
from roost.model.reasons.nodes import DrainRequested
from roost.model.reasons.power import VmStays
from roost.model.reasons.reason import MovedToQueue, Text
from roost.model.records.instance import Instance
from roost.model.states import ALLOCATED, InstanceState, WorkloadKind


class DrainMove(msgspec.Struct, frozen=True, omit_defaults=True):
    instance: str
    node: str = ""  # where it would go; empty: nowhere, as things are
    strategy: str = ""
    code: str = ""  # why nowhere
    text: Text = ()
    may_finish: bool = False  # a job that may finish; the rest describes the time after the deadline


class DrainPreview(msgspec.Struct, frozen=True):
    node: str
    moves: tuple[DrainMove, ...]

    @property
    def is_whole(self) -> bool:
        """Whether everything that has to leave at once has a place."""
        return all(instance_move.node or instance_move.may_finish for instance_move in self.moves)


def drain_preview(state: State, name: str, deadline_ms: int | None) -> DrainPreview:
    """Where everything on a node would go if it was drained now. Nothing is preempted, and more urgent pending
    instances are placed first. Maintenance is ignored: the drain would wait for its end."""
    state.known_node(name)
    trial, out = overlay(state), Step()
    trial.settings = msgspec.structs.replace(state.settings, prefill_max=0, preempt_margin=0)
    trial.meta.maintenance = ""
    node = trial.nodes[name]
    node.draining = True
    refresh_status(trial, out, node, DrainRequested(), trial.now_ms)
    going = [
        instance
        for instance in attempts_on(trial, name)
        if instance.state != InstanceState.STOPPING or instance.requeue_after_stop
    ]
    staying = {instance.key for instance in going if stays(trial, instance)}
    going = [instance for instance in going if instance.key not in staying]
    for instance in reversed(going):  # no prefilled attempt is activated
        _release(trial, out, instance, name)
    allocated = [instance for held in trial.allocated.values() for instance in held.values()]
    for other in [instance for instance in allocated if instance.requeue_after_stop]:  # of a gang all start again
        _release(trial, out, other, name)
    trial.queue.recheck_all()
    for _ in range(PASSES_MAX):
        if not at_once(place(trial, out, trial.now_ms)):
            break
    moves = [_drain_move(trial, instance, deadline_ms) for instance in going]
    reasons = [(key, VmStays(trial.spec_of(trial.instances[key]).policy.move)) for key in sorted(staying)]
    return DrainPreview(name, (*moves, *(DrainMove(key, code=reason.code, text=(reason,)) for key, reason in reasons)))


def _release(trial: State, out: Step, instance: Instance, node: str) -> None:
    """As if an instance had been stopped in order to run elsewhere, and its node had confirmed."""
    if instance.state not in ALLOCATED:
        return
    if instance.state != InstanceState.STOPPING:
        stop(trial, out, instance, NodeDraining(node), trial.now_ms, requeue=True)
    requeue(trial, out, instance, MovedToQueue(NodeDraining(node)), trial.now_ms)
    if instance.state == InstanceState.QUEUED and instance.not_before_ms:
        instance.not_before_ms = 0
        trial.queue.add_requeued(trial.spec_of(instance), instance.index)


def _drain_move(trial: State, instance: Instance, deadline_ms: int | None) -> DrainMove:
    may_finish = deadline_ms != 0 and trial.spec_of(instance).policy.kind == WorkloadKind.JOB
    if instance.state in ALLOCATED:
        decision = instance.decision
        strategy = decision.strategy if decision is not None else ""
        return DrainMove(instance.key, instance.node, strategy, may_finish=may_finish)
    report = why(trial, instance.workload, instance.index)
    return DrainMove(instance.key, code=report.code, text=report.text, may_finish=may_finish)
