"""Adoption: a server with the in-memory store learns from agents what an earlier server had ordered."""

import msgspec

from roost.core.queue.gang import join_gang
from roost.core.state.files import count_instance_files, count_workload_files, give_files
from roost.core.state.results import count_result
from roost.core.state.state import State, is_over
from roost.core.state.timers import TimerKind
from roost.core.state.versions import make_instance, save_version, shrink, version_of
from roost.core.transitions import prefill, reopen
from roost.core.watch import watch_queue
from roost.model.errors import Invalid
from roost.model.keys import instance_key
from roost.model.limits import COUNT_SERVICE_MAX
from roost.model.protocol import Report, Run
from roost.model.reasons.attempts import NotReported, RecoveredFromAgent
from roost.model.records.files import FileSet, Input, InputFiles, covers, folder_index
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.transition import InstanceTransition
from roost.model.records.workload import After, Policy, Workload
from roost.model.spec.document import check_document, decode_document
from roost.model.states import ALLOCATED, AttemptState, InstanceState, WhenLost, WorkloadKind

EXTRA_MAX = 2 * COUNT_SERVICE_MAX  # indexes of a service with its surge replicas


def adopt(state: State, node: Node, run: Run, report: Report, now: int) -> bool:
    """Take over an attempt of an earlier server, unless its name is in use for something else by now."""
    key = instance_key(run.workload, run.index)
    workload = state.workloads.get(run.workload) or _recreated(state, run, now)
    if workload is not None and workload.serial != run.serial and _is_repeated(state, workload, run):
        _identify(state, workload, run, now)
    if workload is None or workload.serial != run.serial or workload.unstarted_end_state:
        return False
    if run.version != workload.version:
        known_as = _of_another_version(state, workload, run)
        if known_as is None:
            return False
        workload = known_as
    existing = state.instances.get(key)
    if existing is not None and (existing.state in ALLOCATED or existing.token >= run.token):
        return False
    if workload.finished_ms:
        reopen(state, workload)
        watch_queue(state, workload)
    if existing is not None:  # another agent has reported an earlier attempt, which had ended
        state.progress_of(workload).counts[existing.state] -= 1
        count_result(state, existing, -1)
        count_instance_files(state, existing, -1)
    state_now = InstanceState.STARTING if report.state == AttemptState.STARTING else InstanceState.RUNNING
    instance = Instance(run.workload, run.index, state_now, run.attempt, run.token, node.name, since_ms=now)
    instance.version = run.version
    instance.started_ms = now - report.started_ago_ms
    instance.devices, instance.ports = run.devices, run.ports
    before = state.allocated[node.name].get(run.after)
    if before is not None and run.after not in state.prefilled:
        prefill(state, instance, before)
    reason, revision = RecoveredFromAgent(), state.revision + 1
    instance.story = (InstanceTransition(run.submitted_ms, None, InstanceState.QUEUED, reason, revision),)
    state.instances[key] = instance
    progress = state.progress_of(workload)
    progress.counts[state_now] = progress.counts.get(state_now, 0) + 1
    progress.placed_count = max(progress.placed_count, run.index + 1)
    state.allocate(state.spec_of(instance), instance)
    state.touch_instance(instance)
    for condition in state.spec_of(instance).policy.after:
        if condition.each:
            give_files(state, instance, condition.workload, _files_from(run, state.spec_of(instance).policy, condition))
    if workload.policy.kind == WorkloadKind.SERVICE:
        state.mark_dirty(workload.key)
    return True


def complete(state: State, workload: Workload) -> None:
    """Once every lease of an earlier server has ended, a service gets back the replicas that no agent reported."""
    if not workload.adopted or workload.policy.kind == WorkloadKind.JOB or workload.unstarted_end_state:
        return
    if is_over(state, workload) or may_run_unreported(state, workload):
        return
    for index in range(workload.count):
        if instance_key(workload.key, index) not in state.instances:
            make_instance(state, workload, index, NotReported(), state.now_ms).reason = None


def may_run_unreported(state: State, workload: Workload) -> bool:
    """Whether an index that no agent reported may still run: until all leases end; a pinned one without limit."""
    is_pinned = workload.policy.fenced and workload.policy.when_lost == WhenLost.PIN
    return workload.adopted and (is_pinned or state.now_ms < state.adoption_deadline_ms())


def policy_of(run: Run) -> Policy | None:
    """The policy in the document of a run; None if this version cannot read it."""
    try:
        return check_document(decode_document(run.document))
    except (Invalid, msgspec.DecodeError):
        return None


def _is_repeated(state: State, workload: Workload, run: Run) -> bool:
    """Whether a pending workload was submitted again, to a server that did not know that it runs."""
    is_untouched = not workload.finished_ms and not workload.unstarted_end_state and not state.placed_count(workload)
    return is_untouched and not workload.values and workload.document == run.document


def _identify(state: State, workload: Workload, run: Run, now: int) -> None:
    """It is the workload of the run: none of its instances is fresh."""
    workload.serial, workload.version, workload.adopted = run.serial, run.version, True
    workload.submitted_ms = run.submitted_ms
    _await_reports(state, workload, now)


def _recreated(state: State, run: Run, now: int) -> Workload | None:
    """The workload of a document. Which instances never ran is unknown, so they are not run again."""
    workload = _workload_of(state, run)
    if workload is None:
        return None
    state.workloads[workload.key] = workload
    count_workload_files(state, workload, 1)
    join_gang(state, workload)
    state.note_group(workload)
    state.note_owner(workload)
    _await_reports(state, workload, now)
    return workload


def _await_reports(state: State, workload: Workload, now: int) -> None:
    state.progress_of(workload).placed_count = workload.count
    state.touch_workload(workload)
    watch_queue(state, workload)
    state.at(now + state.settings.lease_ms + state.settings.lease_margin_ms, TimerKind.ADOPTED, workload.key)


def _workload_of(state: State, run: Run) -> Workload | None:
    """The workload of the document of a run; None if the run does not belong to that document."""
    policy = policy_of(run)
    if policy is None:
        return None
    document = decode_document(run.document)
    policy = msgspec.structs.replace(policy, inputs=tuple(_with_files(item, run) for item in policy.inputs))
    given = [_files_from(run, policy, condition) for condition in policy.after if not condition.each]
    workload = Workload(
        document.project, document.name, state.intern_policy(policy), run.document, run.submitted_ms, run.serial,
        document.count, version=run.version, adopted=True,
        released_ms=max(run.submitted_ms, 1) if policy.after else 0,  # it ran: whatever it waited for had come
        input_files=tuple(files for found in given for files in found),
    )  # fmt: skip
    is_extra = policy.kind == WorkloadKind.SERVICE and run.index < EXTRA_MAX
    return workload if workload.key == run.workload and (0 <= run.index < workload.count or is_extra) else None


def _with_files(item: Input, run: Run) -> Input:
    """An input of a document as its run has it: a name stands for the files that it stood for."""
    found = [given.digest for given in run.inputs if covers(item, given)]
    return msgspec.structs.replace(item, files=FileSet(found[0])) if item.files is not None and found else item


def _files_from(run: Run, policy: Policy, condition: After) -> tuple[InputFiles, ...]:
    """The outputs of a dependency that a run has. Only their digests are known."""
    found = [
        InputFiles(condition.workload, FileSet(given.digest), folder_index(item, given))
        for item in policy.inputs
        for given in run.inputs
        if item.workload == condition.workload and covers(item, given)
    ]
    return tuple(dict.fromkeys(found))


def _of_another_version(state: State, workload: Workload, run: Run) -> Workload | None:
    """The newest version that agents report is the present one; other runs are of earlier ones."""
    if version_of(state, workload, run.version) is not None:
        return workload
    answer = _workload_of(state, run) if workload.adopted else None
    if answer is None:
        return None
    if run.version < workload.version:
        save_version(state, answer)
        return workload
    save_version(state, workload)
    count_workload_files(state, workload, -1)
    state.workloads[answer.key] = answer
    count_workload_files(state, answer, 1)
    state.touch_workload(answer)
    progress = state.progress_of(answer)
    progress.placed_count = max(progress.placed_count, answer.count)
    shrink(state, answer)
    return answer
