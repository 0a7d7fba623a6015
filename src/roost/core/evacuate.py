"""A drain that is only tried: where everything on a node would go, as the core places it on a copy of the state."""

import msgspec

from roost.core.effects import Step
from roost.core.explain import why
from roost.core.move import settle_node, stop
from roost.core.place import place
from roost.core.plan import PASSES_MAX
from roost.core.retry import requeue
from roost.core.state import State
from roost.core.whatif import glance
from roost.model.errors import NotFound
from roost.model.instance import Instance
from roost.model.states import HOLDING


class Leaving(msgspec.Struct, frozen=True, omit_defaults=True):
    """What would become of one instance."""

    instance: str
    node: str = ""  # where it would go; empty: nowhere, as things are
    strategy: str = ""
    code: str = ""  # why nowhere
    words: str = ""
    may_finish: bool = False  # it is a job and has until the deadline; what is said of it holds for then


class Evacuation(msgspec.Struct, frozen=True):
    """What a drain would do."""

    node: str
    leaving: tuple[Leaving, ...]

    @property
    def is_whole(self) -> bool:
        """Whether everything that has to leave at once has a place."""
        return all(each.node or each.may_finish for each in self.leaving)


def evacuation(state: State, name: str, deadline_ms: int) -> Evacuation:
    """Where everything on a node would go if it was drained now. Nobody is stopped to make room; those who wait already
    and come first are placed first. Maintenance is looked past: the drain would wait for its end."""
    if name not in state.nodes:
        raise NotFound(f"there is no node {name}")
    trial, out = glance(state), Step()
    trial.settings = msgspec.structs.replace(state.settings, ahead_max=0, preempt_margin=0)
    trial.meta.maintenance = ""
    node = trial.nodes[name]
    node.draining = True
    settle_node(trial, out, node, "drain asked for", trial.now_ms)
    going = [trial.held[name][token] for token in sorted(trial.held[name])]
    going = [each for each in going if each.state != "stopping" or each.moving]
    for instance in reversed(going):  # nobody steps up
        _set_free(trial, out, instance)
    for other in [each for held in trial.held.values() for each in held.values() if each.moving]:
        _set_free(trial, out, other)  # of a gang all start again
    trial.queue.look_again()
    for _ in range(PASSES_MAX):
        if not place(trial, out, trial.now_ms):
            break
    return Evacuation(name, tuple(_leaving(trial, each, deadline_ms) for each in going))


def _set_free(trial: State, out: Step, instance: Instance) -> None:
    """As if an instance had been stopped in order to run elsewhere, and its node had confirmed."""
    if instance.state not in HOLDING:
        return
    if instance.state != "stopping":
        stop(trial, out, instance, "drain asked for", trial.now_ms, moving=True)
    requeue(trial, out, instance, "moved: drain asked for", trial.now_ms)
    if instance.state == "queued" and instance.ready_ms:
        instance.ready_ms = 0
        trial.queue.add_again(trial.spec_of(instance), instance.index)


def _leaving(trial: State, instance: Instance, deadline_ms: int) -> Leaving:
    may_finish = deadline_ms > 0 and trial.spec_of(instance).policy.kind == "job"
    if instance.state in HOLDING:
        decision = instance.decision
        strategy = decision.strategy if decision is not None else ""
        return Leaving(instance.key, instance.node, strategy, may_finish=may_finish)
    told = why(trial, instance.workload, instance.index)
    return Leaving(instance.key, code=told.code, words=told.words, may_finish=may_finish)
