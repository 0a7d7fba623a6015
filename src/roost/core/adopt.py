"""A server without memory learns from agents what runs: they hand back what an earlier life of it had ordered."""

import msgspec

from roost.core.ahead import stand_behind
from roost.core.move import reopen
from roost.core.state import State, is_over, watch_queue
from roost.core.versions import keep_version, shrink, version_of
from roost.model.document import check_document, decode_document
from roost.model.errors import Invalid
from roost.model.frames import Report, Run
from roost.model.instance import Instance, Move
from roost.model.limits import COUNT_SERVICE_MAX
from roost.model.node import Node
from roost.model.states import HOLDING
from roost.model.workload import Policy, Workload

EXTRA_MAX = 2 * COUNT_SERVICE_MAX  # indexes of a service, those included that stand in while others are replaced


def adopt(state: State, node: Node, run: Run, report: Report, now: int) -> bool:
    """Take over an attempt of an earlier life; not if its name has been given to something else since."""
    key = f"{run.workload}.{run.index}"
    workload = state.workloads.get(run.workload) or _known_again(state, run, now)
    if workload is None or workload.serial != run.serial or workload.rest:
        return False
    if run.version != workload.version:
        known_as = _of_another_version(state, workload, run)
        if known_as is None:
            return False
        workload = known_as
    known = state.instances.get(key)
    if known is not None and (known.state in HOLDING or known.token >= run.token):
        return False
    if workload.finished_ms:
        reopen(state, workload)
        watch_queue(state, workload)
    if known is not None:  # another agent has spoken of an earlier attempt, which had ended
        state.progress_of(workload).counts[known.state] -= 1
    state_now = "starting" if report.state == "starting" else "running"
    instance = Instance(run.workload, run.index, state_now, run.attempt, run.token, node.name, since_ms=now)
    instance.version = run.version
    instance.started_ms = now - report.started_ago_ms
    instance.devices, instance.ports = run.devices, run.ports
    before = state.held[node.name].get(run.after)
    if before is not None and run.after not in state.followers:
        stand_behind(state, instance, before)
    instance.story = (Move(run.submitted_ms, "queued", "submitted to an earlier server", state.revision + 1),)
    state.instances[key] = instance
    progress = state.progress_of(workload)
    progress.counts[state_now] = progress.counts.get(state_now, 0) + 1
    progress.begun = max(progress.begun, run.index + 1)
    state.occupy(state.spec_of(instance), instance)
    state.touch_instance(instance)
    if workload.policy.kind == "service":
        state.rouse(workload.key)
    return True


def complete(state: State, workload: Workload) -> None:
    """Once every lease of an earlier life has ended, a service gets back the replicas nobody spoke of."""
    if not workload.adopted or workload.policy.kind == "job" or workload.rest or is_over(state, workload):
        return
    if workload.policy.exclusive and workload.policy.when_lost == "keep":
        return  # where it is kept it runs for ever, also out of touch
    counts = state.progress_of(workload).counts
    for index in range(workload.count):
        key = f"{workload.key}.{index}"
        if key not in state.instances:
            instance = Instance(workload.key, index, since_ms=state.now_ms, version=workload.version)
            state.instances[key] = instance
            instance.story = (Move(state.now_ms, "queued", "no agent spoke of it", state.revision + 1),)
            counts["queued"] = counts.get("queued", 0) + 1
            state.touch_instance(instance)
            state.queue.add_again(workload, index)


def policy_of(run: Run) -> Policy | None:
    """How a run is to be treated, as its document tells; None if an agent kept what cannot be read here any more."""
    try:
        return check_document(decode_document(run.document))
    except (Invalid, msgspec.DecodeError):
        return None


def _known_again(state: State, run: Run, now: int) -> Workload | None:
    """The workload as its document tells. Which instances never ran is not known any more: they are not run again."""
    workload = _as_told(state, run)
    if workload is None:
        return None
    state.workloads[workload.key] = workload
    if workload.policy.gang:
        state.gangs.setdefault(workload.policy.gang, {})[workload.key] = None
    state.progress_of(workload).begun = workload.count
    state.touch_workload(workload)
    watch_queue(state, workload)
    state.at(now + state.settings.lease_ms + state.settings.lease_margin_ms, "adopted", workload.key)
    return workload


def _as_told(state: State, run: Run) -> Workload | None:
    """The workload as the document of a run tells it; None: it tells of something else."""
    policy = policy_of(run)
    if policy is None:
        return None
    document = decode_document(run.document)
    workload = Workload(
        document.project, document.name, state.shared(policy), run.document, run.submitted_ms, run.serial,
        document.count, version=run.version, adopted=True,
        released_ms=max(run.submitted_ms, 1) if policy.after else 0,  # it ran: whatever it waited for had come
    )  # fmt: skip
    is_extra = policy.kind == "service" and run.index < EXTRA_MAX
    return workload if workload.key == run.workload and (0 <= run.index < workload.count or is_extra) else None


def _of_another_version(state: State, workload: Workload, run: Run) -> Workload | None:
    """The newest version that agents speak of is the present one; runs of others tell what those were."""
    if version_of(state, workload, run.version) is not None:
        return workload
    told = _as_told(state, run) if workload.adopted else None
    if told is None:
        return None
    if run.version < workload.version:
        keep_version(state, told)
        return workload
    keep_version(state, workload)
    state.workloads[told.key] = told
    state.touch_workload(told)
    progress = state.progress_of(told)
    progress.begun = max(progress.begun, told.count)
    shrink(state, told)
    return told
