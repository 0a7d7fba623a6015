"""What a change of a document means for those who run: nothing, a move because a rule is broken now, or a restart."""

from functools import lru_cache

from roost.core.choose import plain, social_mask
from roost.core.claim import claim_of, subjects_of
from roost.core.shortlist import could_fit
from roost.core.state import State
from roost.model.document import decode_document
from roost.model.instance import Instance
from roost.model.workload import Workload

#: What a run is made of. All else of a document can change while it runs.
MADE_OF = ("kind", "image", "command", "steps", "env", "ports", "resources", "timeout", "exclusive", "health")


def needs_restart(old: Workload, new: Workload) -> bool:
    """Whether who runs one version has to be started again to be of the other."""
    if old.document == new.document and old.values == new.values:
        return False
    if old.values != new.values or _is_kept(old) != _is_kept(new):
        return True
    return _made_otherwise(old.document, new.document)


@lru_cache(maxsize=64)  # a rollout asks the same again whenever one of its instances has changed
def _made_otherwise(old: bytes, new: bytes) -> bool:
    before, after = decode_document(old), decode_document(new)
    return any(getattr(before, field) != getattr(after, field) for field in MADE_OF)


def rule_breakers(state: State, old: Workload, new: Workload, instances: list[Instance]) -> frozenset[int]:
    """Who runs where the new rules do not allow it: each as if it came now, and those before it had gone."""
    if old.policy.ask == new.policy.ask:
        return frozenset()
    fleet, ask = state.fleet, new.policy.ask
    fits = could_fit(fleet, plain(ask))
    subjects = subjects_of(new.project, new.key, new.policy.labels)
    gone: list[Instance] = []
    for instance in instances:
        claim, row = claim_of(old, instance), fleet.row(instance.node)
        fleet.take(instance.node, claim, -1, is_trial=True)
        social = social_mask(fleet, ask, subjects, fits)
        if bool(fits[row]) and (social is None or bool(social[row])):
            fleet.take(instance.node, claim, is_trial=True)
        else:
            gone.append(instance)
    for instance in gone:
        fleet.take(instance.node, claim_of(old, instance), is_trial=True)
    return frozenset(each.index for each in gone)


def _is_kept(workload: Workload) -> bool:
    """Whether it has no lease: agents are told so when it starts."""
    return workload.policy.when_lost == "keep"
