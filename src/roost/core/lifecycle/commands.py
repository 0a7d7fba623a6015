"""Submit, cancel, retry. Documents were checked at the edge; these rules check them against the state."""

from collections.abc import Sequence
from itertools import chain

from msgspec.structs import replace

from roost.core.dependencies import release
from roost.core.dependencies.inputs import take_present_files
from roost.core.dependencies.validate import affinity_cycle, after_refusal, contradiction_of
from roost.core.lifecycle.companions import check_owner, ended_companions, owner_refusal, wait_for_companions
from roost.core.lifecycle.restarts import may_still_run, requeue
from roost.core.lifecycle.retention import forget
from roost.core.lifecycle.stop import cancel_all, cancel_one
from roost.core.lifecycle.supersede import supersede
from roost.core.lifecycle.update import change, change_refusal, is_same
from roost.core.placement.filters.isolation import may_run_as
from roost.core.placement.filters.resources import format_amount
from roost.core.placement.strategies import check_strategy
from roost.core.queue.gang import join_gang
from roost.core.state.files import Excess, count_workload_files, project_full
from roost.core.state.outcome import Paced, Step
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.core.transitions import reopen
from roost.core.watch import reschedule, watch_queue
from roost.model.errors import Conflict, Forbidden, Invalid, NotFound, RoostError
from roost.model.events import Cancel, Retry, Submit, SubmitReply, SubmitResult, WorkloadSpec
from roost.model.keys import instance_key
from roost.model.reasons.attempts import SUBMITTED, CancelRequested, RetryRequested, WaitingForDependencies
from roost.model.reasons.reason import Reason, Text, VersionApplied, joined
from roost.model.reasons.subjects import WorkloadRef
from roost.model.records.files import FileSet
from roost.model.records.instance import Instance
from roost.model.records.project import INSTANCES
from roost.model.records.workload import Rollout, Workload
from roost.model.spec.units import show_duration
from roost.model.states import FINISHED, InstanceState, RolloutState, WorkloadKind

WORKLOADS_MAX = 1_000_000  # known at once: half a gigabyte
REACH_MAX = 10_000  # how far ahead of an array's progress one index can be cancelled; each costs a record


def submit(state: State, out: Step, event: Submit, now: int) -> Paced[None]:
    """Take in workloads, all or none. A finished one of the same name is replaced; a live one is a conflict.

    With `must_exist` a live one is changed, and one that is finished or unknown is not found.
    """
    new: dict[str, WorkloadSpec] = {}
    for position, wanted in enumerate(event.specs):
        yield 1
        key = wanted.key
        known = state.workloads.get(key)
        alive = known if known is not None and not known.finished_ms else None
        if alive is not None and (event.same_ok or event.must_exist) and is_same(alive, wanted):
            continue
        is_applied = event.same_ok and not event.must_exist and not event.rerun
        if known is not None and is_applied and _is_done(known, wanted):
            continue
        try:
            _check(state, event, wanted, alive, key in new, now)
        except RoostError as error:
            raise _at(error, event, position) from None
        new[key] = wanted
    if len(state.workloads) + len(new) > WORKLOADS_MAX:
        raise Conflict(f"there are {len(state.workloads):,} workloads already", code="too_many")
    _check_files(state, event, new)
    keys: list[str] = [wanted.key for wanted in event.specs]
    yield from _check_affinity(state, keys, new)
    refused = owner_refusal(state, new) or (yield from after_refusal(state, new))
    if refused is not None:
        raise _at(refused[1], event, keys.index(refused[0]))
    results: dict[str, SubmitResult] = {}
    for name, wanted in new.items():
        results[name] = yield from _take_in(state, out, name, wanted, now)
        yield 1
    yield from supersede(state, out, new, now)
    out.reply(event.request, tuple(SubmitReply(key, results.get(key, "unchanged")) for key in keys))


def _is_done(known: Workload, wanted: WorkloadSpec) -> bool:
    """Whether a job of the same document has ended, however it did: it is not run again and again by being applied."""
    is_job = known.policy.kind == WorkloadKind.JOB and not known.policy.schedule
    return bool(known.finished_ms) and is_job and is_same(known, wanted)


def _check_affinity(state: State, keys: list[str], new: dict[str, WorkloadSpec]) -> Paced[None]:
    chain = yield from affinity_cycle(state.workloads, new, state.fleet.topology.members)
    if chain:
        refs: list[Text] = [(WorkloadRef.of(key),) for key in chain]
        text: Text = ("each waits for the next to run: ", *joined(" near ", refs), "; let one start anywhere")
        code = "near_cycle"
    else:
        odds = yield from contradiction_of(state.workloads, new)
        if odds is None:
            return
        chain, code = list(odds), "contradiction"
        first, second = WorkloadRef.of(odds[0]), WorkloadRef.of(odds[1])
        text = ("one of ", first, " and ", second, " must be near the other, which must be apart; remove one rule")
    path = f"[{keys.index(chain[0])}]." if len(keys) > 1 else ""
    raise Invalid(f"{path}placement", "rules about neighbours cannot be met", code=code, text=text)


def _at(error: RoostError, event: Submit, position: int) -> RoostError:
    """Of several workloads, let an error name the one that it is about."""
    if len(event.specs) > 1:
        error.path = f"[{position}].{error.path}"
    return error


def _check(state: State, event: Submit, wanted: WorkloadSpec, alive: Workload | None, twice: bool, now: int) -> None:
    key = wanted.key
    if twice:
        message = f"{key} is in the same request twice"
        raise Conflict(message, code="name_in_use", path="name", params={"workload": key})
    if alive is None and event.must_exist:
        message = f"{key} is over: submit it again" if key in state.workloads else f"there is no workload {key}"
        raise NotFound(message, path="name", params={"workload": key})
    if alive is not None and (event.same_ok or event.must_exist):
        error = change_refusal(state, alive, wanted)
        if error is not None:
            raise error
    elif alive is not None:
        since = show_duration(now - alive.submitted_ms)
        message = f"{key} is in use since {since}; cancel it first or take another name"
        raise Conflict(message, code="name_in_use", path="name", params={"workload": key})
    check_strategy(wanted.policy.ask.strategy, "placement.strategy")
    if not may_run_as(state.fleet, wanted.project, wanted.policy.ask):
        raise Forbidden(
            f"project {wanted.project} may not run as {wanted.policy.ask.run_as}; an administrator can allow it with "
            f"`roost projects set {wanted.project} --run-as {wanted.policy.ask.run_as}`",
            path="run_as",
        )
    _check_quota(state, wanted)


def _check_quota(state: State, wanted: WorkloadSpec) -> None:
    """Refuse what has to run all at once and never can within the quota; a job may release.wait for its turn."""
    project, policy = state.projects.get(wanted.project), wanted.policy
    if project is None or project.counted or project.borrow:
        return
    together = wanted.count if policy.kind != WorkloadKind.JOB or policy.gang else 1
    needed = {name: amount * together for name, amount in policy.ask.resources} | {INSTANCES: together}
    for name, most in project.quota.items():
        if needed.get(name, 0) > most:
            wants = format_amount(name, needed[name])
            message = f"{wants} are asked for at once, the quota of project {project.name} is "
            facts = {"project": project.name, "resource": name, "wanted": needed[name], "quota": most}
            raise Conflict(message + format_amount(name, most), code="quota_exceeded", path="count", params=facts)


def _check_files(state: State, event: Submit, new: dict[str, WorkloadSpec]) -> None:
    """Refuse inputs that are too much for the file quota of their project, also several together."""
    wanted_sets: dict[str, list[FileSet]] = {}
    for position, wanted in enumerate(event.specs):
        found = [item.files for item in wanted.policy.inputs if item.files is not None]
        if not found or new.get(wanted.key) is not wanted:
            continue
        sets = wanted_sets.setdefault(wanted.project, [])
        sets += found
        over = project_full(state, wanted.project, sets)
        if over is not None:
            raise _at(files_excess(wanted.project, over, "inputs"), event, position)


def files_excess(project: str, over: Excess, path: str) -> Conflict:
    facts = {"project": project, "resource": over.name, "wanted": over.wanted, "used": over.used, "quota": over.most}
    used, more, most = (format_amount(over.name, number) for number in over[1:])
    message = f"project {project} keeps {used} and would get {more} more; its quota is {most}"
    message += ". Delete finished workloads, or ask for a larger quota"
    return Conflict(message, code="quota_exceeded", path=path, params=facts)


def _take_in(state: State, out: Step, key: str, wanted: WorkloadSpec, now: int) -> Paced[SubmitResult]:
    known = state.workloads.get(key)
    if known is not None and not known.finished_ms:
        before = known.version
        change(state, out, known, wanted, now, VersionApplied(out.principal))
        return "changed" if state.workloads[key].version != before else "unchanged"
    if known is not None:
        yield from forget(state, out, known)
    policy = state.intern_policy(wanted.policy)
    workload = Workload(
        wanted.project, wanted.name, policy, wanted.document, now, state.next_serial(), wanted.count,
        values=wanted.values,
    )  # fmt: skip
    if policy.kind == WorkloadKind.SERVICE:
        workload.rollout = Rollout(RolloutState.ROLLING, 0, now, now)
        state.mark_dirty(key)
    state.workloads[key] = workload
    count_workload_files(state, workload, 1)
    state.note_group(workload)
    state.note_owner(workload)
    join_gang(state, workload)
    state.touch_workload(workload)
    watch_queue(state, workload)
    if policy.schedule:
        reschedule(state, workload, now)
    elif policy.after or workload.is_gated:
        yield release.begin(state, out, workload, now)
        if release.depends_by_element(workload):
            yield from materialise(state, workload, workload.count)
    else:
        release.enqueue(state, workload)
    return "created"


def cancel(state: State, out: Step, event: Cancel, now: int) -> Paced[None]:
    """Stop a workload or one of its instances. Finished ones stay as they are: cancelling twice is fine."""
    workload = _known(state, event)
    if event.index is None or workload.count == 1:
        cancel_all(state, out, workload, CancelRequested(out.principal), now)
    elif workload.policy.schedule:
        message = f"{workload.key} runs by a schedule and has no instances itself; cancel all of it, or one of its runs"
        raise Conflict(message, path="index")
    else:
        if event.index >= state.placed_count(workload) and not workload.unstarted_end_state:
            if event.index - state.placed_count(workload) > REACH_MAX:
                message = f"index {event.index} is too far from its turn; cancel the whole workload"
                raise Conflict(message, path="index")
            yield from materialise(state, workload, event.index + 1)
        instance = state.instances.get(instance_key(workload.key, event.index))
        if instance is not None:
            cancel_one(state, out, instance, CancelRequested(out.principal), now)
    out.reply(event.request, workload.key)


def retry(state: State, out: Step, event: Retry, now: int) -> Paced[None]:
    """Run again what did not succeed; an instance that is named runs again however it ended."""
    workload = _known(state, event)
    if workload.cancelling is not None:
        raise Conflict(f"{workload.key} is being cancelled; try again in a moment", code="being_cancelled")
    check_owner(state, workload)
    chosen = yield from _chosen(state, workload, event)
    is_whole = event.index is None and not event.failed
    fresh = is_whole and bool(workload.unstarted_end_state) and state.placed_count(workload) < workload.count
    never = _never_released(state, workload, chosen, fresh=fresh)
    if never is not None:
        message = f"{workload.key} cannot start: retry its dependency first"
        raise Conflict(message, code="after_failed", reason=never)
    if not chosen and not fresh:
        message = f"nothing of {workload.key} has failed; name an instance ({workload.name}.0) to run it again anyway"
        raise Conflict(message, code="nothing_to_retry")
    companions = ended_companions(state, workload)
    replicas = {companion.key: instances_of(state, companion) for companion in companions}
    for instance in [*chosen, *chain.from_iterable(replicas.values())]:
        if may_still_run(state, instance):
            message = f"{instance.key} may still be running on {instance.node}, which has not confirmed its end"
            raise Conflict(message, code="may_still_run")
        yield 1
    for companion in companions:
        unstarted = state.placed_count(companion) < companion.count
        yield from _run_again(state, out, companion, replicas[companion.key], fresh=unstarted, now=now)
    yield from _run_again(state, out, workload, chosen, fresh=fresh, now=now, companions=companions)
    out.reply(event.request, workload.key)


def _run_again(
    state: State, out: Step, workload: Workload, chosen: list[Instance], *, fresh: bool, now: int,
    companions: Sequence[Workload] = (),
) -> Paced[None]:  # fmt: skip
    _wait_again(state, workload, chosen)
    _take_files_again(state, workload, chosen)
    if companions:
        wait_for_companions(state, workload, list(companions), chosen)
    _reopen(state, out, workload, fresh=fresh, now=now)
    for instance in chosen:
        instance.losses = instance.failures = 0
        requeue(state, out, instance, RetryRequested(out.principal), now)
        yield 1


def _chosen(state: State, workload: Workload, event: Retry) -> Paced[list[Instance]]:
    found: list[Instance] = []
    for index in range(state.placed_count(workload)) if event.index is None else (event.index,):
        instance = state.instances.get(instance_key(workload.key, index))
        if (
            instance is not None
            and instance.state in FINISHED
            and (event.index is not None or instance.state != InstanceState.SUCCEEDED)
            and (not event.failed or instance.state in (InstanceState.FAILED, InstanceState.TIMED_OUT))
        ):
            found.append(instance)
        yield 1
    return found


def _never_released(state: State, workload: Workload, chosen: list[Instance], *, fresh: bool) -> Reason | None:
    """Why nothing of what is to be retried could start. Elements that could not are removed from `chosen`."""
    stuck = [instance for instance in chosen if instance.blocked_on_dependency]
    if not workload.policy.after or not (fresh or stuck):
        return None
    reason = release.bad_conditions(state, workload) if not workload.released_ms else None
    if reason is not None:
        return reason
    found = {instance.index: release.bad_elements(state, workload, instance.index) for instance in stuck}
    hopeless = {index: reason for index, reason in found.items() if reason is not None}
    chosen[:] = [instance for instance in chosen if instance.index not in hopeless]
    return next(iter(hopeless.values()), None) if not chosen and not fresh else None


def _wait_again(state: State, workload: Workload, chosen: list[Instance]) -> None:
    """Instances that were never released release.wait again: their dependency may be live again."""
    stuck = [instance for instance in chosen if instance.blocked_on_dependency]
    known = {condition.workload for condition in workload.pending_conditions}
    again = tuple(
        condition
        for condition in release.conditions_of(state, workload)
        if condition.workload not in known and (stuck if condition.each else not workload.released_ms)
    )
    if again:
        release.wait(state, workload, workload.pending_conditions + again)
    for instance in stuck if not workload.pending_conditions else ():
        instance.blocked_on_dependency = False


def _take_files_again(state: State, workload: Workload, chosen: list[Instance]) -> None:
    """What is run again gets the present outputs of its dependencies. Others that run keep their inputs."""
    if not workload.policy.inputs:
        return
    conditions = release.conditions_of(state, workload)
    if workload.finished_ms:
        take_present_files(state, workload, conditions)
    for instance in chosen:
        take_present_files(state, workload, conditions, instance)


def materialise(state: State, workload: Workload, until: int) -> Paced[None]:
    """Give records to instances below an index that have none yet, so that they can differ from each other."""
    for index in range(state.placed_count(workload), until):
        instance = state.new_instance(workload, index, SUBMITTED, workload.submitted_ms)
        instance.since_ms = workload.submitted_ms
        if workload.pending_conditions:
            instance.blocked_on_dependency, instance.reason = True, WaitingForDependencies()
        state.touch_instance(instance)
        if not instance.blocked_on_dependency:
            state.queue.add_requeued(workload, index)
        yield 1


def _reopen(state: State, out: Step, workload: Workload, *, fresh: bool, now: int) -> None:
    reopen(state, workload)
    if fresh or state.placed_count(workload) >= workload.count:
        workload.unstarted_end_state, workload.reason = None, None
    if fresh and workload.policy.schedule:
        reschedule(state, workload, now)
    elif fresh and workload.is_gated and not workload.released_ms and not workload.pending_conditions:
        release.begin(state, out, workload, now)
    elif fresh:
        release.enqueue(state, workload)
    workload.submitted_ms = now  # limits on waiting count from here
    if workload.policy.kind == WorkloadKind.SERVICE:
        state.mark_dirty(workload.key)  # a service that has finished is no longer reconciled
        if workload.rollout is not None and workload.rollout.is_going:
            workload.rollout = replace(workload.rollout, progress_ms=now)
    watch_queue(state, workload)
    state.touch_workload(workload)


def _known(state: State, event: Cancel | Retry) -> Workload:
    workload = state.known_workload(event.workload)
    if event.index is not None and not 0 <= event.index < workload.count:
        raise NotFound(f"{event.workload} has instances 0 to {workload.count - 1}, not {event.index}")
    return workload
