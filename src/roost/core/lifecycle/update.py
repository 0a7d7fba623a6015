"""Updates: a live workload gets a new version. Pending instances get it at once, running replicas by `reconcile`."""

from functools import lru_cache

import msgspec

from roost.core.dependencies.inputs import Files, files_for_version
from roost.core.dependencies.release import change_dependencies, depends_by_element, enqueue, settled_conditions
from roost.core.lifecycle.adopt import complete
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.select import affinity_mask, without_affinity
from roost.core.state.allocation import allocation_of, selectors_of
from roost.core.state.files import count_workload_files
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.core.state.versions import instances_of, make_instance, save_version, version_of, versions_of
from roost.core.transitions import finish_if_over, note_instance
from roost.core.watch import reschedule, watch_queue
from roost.model.errors import Conflict, NotFound
from roost.model.events import Rollback, WorkloadSpec
from roost.model.keys import instance_key
from roost.model.reasons.attempts import SUBMITTED, DependencyWithoutOutputs, ScaledUp, UpdatedInPlace
from roost.model.reasons.reason import Reason, RolledBack
from roost.model.records.files import FileSet, Input
from roost.model.records.instance import Instance
from roost.model.records.workload import Policy, Rollout, Workload
from roost.model.spec.document import decode_document
from roost.model.states import ALLOCATED, FINISHED, InstanceState, RolloutState, WhenLost, WorkloadKind

#: What a run is made of. All else of a document can change while it runs.
DESTRUCTIVE_FIELDS = (
    "kind", "image", "container", "volumes", "isolation", "run_as", "limits", "vm",
    "command", "steps", "env", "ports", "resources", "timeout", "fenced",
    "health", "stderr", "outputs",
)  # fmt: skip


def is_same(known: Workload, wanted: WorkloadSpec) -> bool:
    """Whether the wanted workload exists already. One whose rollout failed does not: it is tried again."""
    if known.rollout is not None and known.rollout.state == RolloutState.FAILED:
        return False
    same = known.document == wanted.document and known.values == wanted.values
    return same and _same_inputs(known.policy, wanted.policy)


def _same_inputs(one: Policy, other: Policy) -> bool:
    """Names (`blob:NAME`) may stand for other files than before, in the same document."""
    return one.inputs == other.inputs or [*map(_origin, one.inputs)] == [*map(_origin, other.inputs)]


def _origin(item: Input) -> Input:
    """Without the sizes, which a server does not know of an adopted workload."""
    return msgspec.structs.replace(item, files=FileSet(item.files.digest)) if item.files is not None else item


def change_refusal(state: State, known: Workload, wanted: WorkloadSpec) -> Conflict | None:
    key, policy = known.key, wanted.policy
    if known.unstarted_end_state:
        return Conflict(f"{key} is being stopped; wait until it is over", code="name_in_use", path="name")
    if policy.kind != known.policy.kind:
        message = f"{key} is a {known.policy.kind}; cancel it first to make it a {policy.kind}"
        return Conflict(message, code="cannot_change", path="kind")
    if (policy.gang, policy.gang_size) != (known.policy.gang, known.policy.gang_size):
        return Conflict(f"{key} lives, and who is of its gang cannot change", code="cannot_change", path="gang")
    if known.policy.approval_role or policy.approval_role:
        message = f"{key} is approved as it is; cancel it first to submit another one"
        return Conflict(message, code="cannot_change", path="approve")
    if (known.policy.condition or policy.condition) and (
        (policy.condition, policy.after) != (known.policy.condition, known.policy.after)
    ):
        message = f"{key} has a condition over its dependencies; cancel it first to change them"
        return Conflict(message, code="cannot_change", path="if")
    if policy.until != known.policy.until:
        return Conflict(f"{key} lives, and how long cannot change", code="cannot_change", path="until")
    if policy.concurrency_group != known.policy.concurrency_group:
        return Conflict(f"{key} lives, and its group cannot change", code="cannot_change", path="concurrency")
    if bool(policy.schedule) != bool(known.policy.schedule):
        what = "runs by a schedule" if known.policy.schedule else "runs by itself"
        return Conflict(f"{key} {what}; cancel it first to change that", code="cannot_change", path="schedule")
    if policy.kind != WorkloadKind.SERVICE and wanted.count < state.placed_count(known):
        message = f"{state.placed_count(known):,} instances of {key} have begun; there cannot be fewer"
        return Conflict(message, code="cannot_change", path="count")
    if policy.kind == WorkloadKind.JOB and known.adopted and wanted.count != known.count:
        message = f"which instances of {key} have run is no longer known, so their number cannot change"
        return Conflict(message, code="cannot_change", path="count")
    by_element = depends_by_element(known) or any(condition.each for condition in policy.after)
    if by_element and (policy.after != known.policy.after or wanted.count != known.count):
        message = f"the elements of {key} wait for one each; cancel it first to change their dependencies"
        return Conflict(message, code="cannot_change", path="after")
    if by_element and not _same_inputs(policy, known.policy):
        message = f"the elements of {key} have inputs of their own; cancel it first to change them"
        return Conflict(message, code="cannot_change", path="inputs")
    files = _files_of(state, known, wanted)
    if isinstance(files, DependencyWithoutOutputs):
        message = f"{key} was released, so it no longer waits for outputs"
        return Conflict(message, code="cannot_change", path="inputs", reason=files)
    if policy.gang and (wanted.count != known.count or is_destructive(known, _changed(known, wanted, files))):
        message = f"{key} is a gang, which starts together; cancel it first to start it as something else"
        return Conflict(message, code="cannot_change", path="gang")
    return None


def change(
    state: State, out: Step, known: Workload, wanted: WorkloadSpec, now: int, reason: Reason, *, back: bool = False
) -> Workload:  # fmt: skip
    """Replace a live workload by a new version. `back`: the version was good before."""
    if known.policy.kind == WorkloadKind.SERVICE and not known.pending_conditions:
        for index in range(state.placed_count(known), known.count):  # they are of the version before for a while
            make_instance(state, known, index, SUBMITTED, now)
    files = _files_of(state, known, wanted)
    new = _changed(known, wanted, files if isinstance(files, tuple) else known.input_files)
    _replace_version(state, known, new, reason, now, back=back)
    change_dependencies(state, known, new)
    if new.policy.schedule:
        reschedule(state, new, now, known.policy.schedule)
    if new.policy.kind == WorkloadKind.SERVICE:
        _fill_up(state, new, now)
    else:
        _adopt_pending(state, new)
    if new.policy.kind == WorkloadKind.VM:
        update_in_place(state, new, now)
    enqueue(state, new)
    watch_queue(state, new)
    finish_if_over(state, new, now)  # of a job that is made smaller, nothing may be left to do
    return new


def _replace_version(state: State, old: Workload, new: Workload, reason: Reason, now: int, *, back: bool) -> None:
    """Put a new version in the place of the present one. A version that was good has none to go back to."""
    save_version(state, old)
    new.version, new.changed_ms, new.change, new.rollout = old.version + 1, now, reason, None
    new.policy = state.intern_policy(new.policy)
    count_workload_files(state, old, -1)
    state.workloads[new.key] = new
    count_workload_files(state, new, 1)
    state.touch_workload(new)
    if new.policy.kind == WorkloadKind.SERVICE:
        new.rollout = Rollout(RolloutState.ROLLING, 0 if back else _last_good(old), now, now)
        state.mark_dirty(new.key)


def _last_good(workload: Workload) -> int:
    """The version to go back to if the next one fails: this one, unless it is not known to be good itself."""
    rollout = workload.rollout
    if rollout is not None and rollout.state == RolloutState.FAILED and workload.version == 1:
        return 0
    if rollout is None or rollout.state == RolloutState.DONE or not rollout.before:
        return workload.version
    return rollout.before


def rollback(state: State, out: Step, event: Rollback, now: int) -> None:
    workload = state.known_workload(event.workload)
    if workload.finished_ms:
        raise Conflict(f"{event.workload} is over; apply it again to start it", code="is_over")
    known = [item for item in versions_of(state, workload) if item != workload.version]
    number = event.version or _before(state, workload, known)
    target = version_of(state, workload, number)
    if target is None or number == workload.version:
        report = f"those known are {', '.join(map(str, sorted(known)))}" if known else "it was never changed"
        message = f"{workload.key} has no version {event.version} to go back to; {report}"
        if not event.version:
            report = "it was never changed" if not known else "none that it had was another one, and good; name one"
            message = f"{workload.key} has no version to go back to: {report}"
        raise NotFound(message, code="no_such_version")
    error = change_refusal(state, workload, _wanted(target))
    if error is not None:
        raise error
    roll_back_to(state, out, workload, target, RolledBack(number, out.principal), now)
    out.reply(event.request, workload.key)


def roll_back_to(state: State, out: Step, workload: Workload, target: Workload, reason: Reason, now: int) -> Workload:
    return change(state, out, workload, _wanted(target), now, reason, back=True)


def _before(state: State, workload: Workload, known: list[int]) -> int:
    """The default version to go back to: the last good one that differs from the present one."""
    rollout = workload.rollout
    if rollout is not None and rollout.state != RolloutState.DONE and rollout.before:
        return rollout.before
    for number in known:
        other = version_of(state, workload, number)
        has_failed = other is not None and other.rollout is not None and other.rollout.state == RolloutState.FAILED
        if other is not None and not has_failed and not is_same(workload, _wanted(other)):
            return number
    return 0


def _wanted(version: Workload) -> WorkloadSpec:
    return WorkloadSpec(
        version.project, version.name, version.count, version.policy, version.document, version.values,
        version.input_files,
    )  # fmt: skip


def _files_of(state: State, known: Workload, wanted: WorkloadSpec) -> Files | DependencyWithoutOutputs:
    return files_for_version(state, known, wanted, settled_conditions(state, known, wanted))


def _changed(known: Workload, wanted: WorkloadSpec, files: Files) -> Workload:
    return msgspec.structs.replace(
        known, policy=wanted.policy, document=wanted.document, count=wanted.count, values=wanted.values,
        input_files=files,
    )  # fmt: skip


def _fill_up(state: State, new: Workload, now: int) -> None:
    """More are wanted than before: indexes in between that have retired come back."""
    for instance in instances_of(state, new):
        if instance.index < new.count and instance.state == InstanceState.STOPPING and not instance.requeue_after_stop:
            instance.requeue_after_stop = True  # it was to retire
            state.touch_instance(instance)
    if new.adopted:  # a missing replica may run on a node that has not registered yet
        for index in range(state.placed_count(new), new.count):
            make_instance(state, new, index, ScaledUp(), now)
        if state.now_ms >= state.adoption_deadline_ms():
            complete(state, new)
        return
    for index in range(min(state.placed_count(new), new.count)):
        if instance_key(new.key, index) not in state.instances:
            make_instance(state, new, index, ScaledUp(), now)


def _adopt_pending(state: State, new: Workload) -> None:
    """Pending instances get the new version now, running ones with their next attempt."""
    for instance in instances_of(state, new):
        if instance.state == InstanceState.QUEUED:
            instance.version = new.version
            state.touch_instance(instance)
            if instance.not_before_ms <= state.now_ms and not instance.blocked_on_dependency:
                state.queue.add_requeued(new, instance.index)


def update_in_place(state: State, workload: Workload, now: int) -> list[Instance]:
    """Replicas and virtual machines whose process does not change get the present version, unless they violate its
    placement rules."""
    replicas = instances_of(state, workload)
    older: dict[int, list[Instance]] = {}
    for instance in replicas:
        if instance.version != workload.version:
            older.setdefault(instance.version, []).append(instance)
    for instances in older.values():
        old = state.spec_of(instances[0])
        if is_destructive(old, workload):
            continue
        stays = [instance for instance in instances if instance.state != InstanceState.STOPPING]
        breakers = violating(state, old, workload, [instance for instance in stays if instance.state in ALLOCATED])
        for instance in stays:
            if instance.index not in breakers and instance.state not in FINISHED:
                _relabel(state, old, workload, instance, now)
    return replicas


def _relabel(state: State, old: Workload, workload: Workload, instance: Instance, now: int) -> None:
    if instance.state in ALLOCATED:
        state.release(old, instance)
    instance.version = workload.version
    if instance.state in ALLOCATED:
        state.allocate(workload, instance)
        note_instance(state, instance, instance.state, UpdatedInPlace(workload.version), now)
    elif not instance.blocked_on_dependency:
        state.queue.add_requeued(workload, instance.index)
    state.touch_instance(instance)


def is_destructive(old: Workload, new: Workload) -> bool:
    if old.input_files != new.input_files or not _same_inputs(old.policy, new.policy):
        return True
    if old.document == new.document and old.values == new.values:
        return False
    if old.values != new.values or _is_pinned(old) != _is_pinned(new):
        return True
    return _differs_in_process(old.document, new.document)


@lru_cache(maxsize=64)  # a rollout asks the same again whenever one of its instances has changed
def _differs_in_process(old: bytes, new: bytes) -> bool:
    before, after = decode_document(old), decode_document(new)
    return any(getattr(before, field) != getattr(after, field) for field in DESTRUCTIVE_FIELDS)


def violating(state: State, old: Workload, new: Workload, instances: list[Instance]) -> frozenset[int]:
    """Instances where the new rules forbid them: each as if it were placed now, after the violating ones have left."""
    if old.policy.ask == new.policy.ask:
        return frozenset()
    fleet, ask = state.fleet, new.policy.ask
    fits = fits_when_empty(fleet, without_affinity(ask))
    subjects = selectors_of(new.project, new.key, new.policy.labels)
    gone: list[Instance] = []
    for instance in instances:
        claim, row = allocation_of(old, instance), fleet.row(instance.node)
        fleet.take(instance.node, claim, -1, is_trial=True)
        social = affinity_mask(fleet, ask, subjects, fits)
        if bool(fits[row]) and (social is None or bool(social[row])):
            fleet.take(instance.node, claim, is_trial=True)
        else:
            gone.append(instance)
    for instance in gone:
        fleet.take(instance.node, allocation_of(old, instance), is_trial=True)
    return frozenset(instance.index for instance in gone)


def _is_pinned(workload: Workload) -> bool:
    """Whether it has no lease: agents know that from its start."""
    return workload.policy.when_lost == WhenLost.PIN
