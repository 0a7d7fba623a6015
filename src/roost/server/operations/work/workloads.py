"""Workloads and their versions: submit, plan, list, show, explain, cancel, retry, promote, roll back."""

import pickle
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from roost.core.explain.advice import Advice, advise
from roost.core.explain.why import why as explain
from roost.core.state.state import State
from roost.core.step import make_plan
from roost.model.errors import Conflict, Invalid, NotFound
from roost.model.events import (
    Approve,
    Cancel,
    Delete,
    Event,
    Promote,
    Retry,
    Rollback,
    Submit,
    SubmitReply,
    WorkloadSpec,
)
from roost.model.reasons.reason import PlacementRejected
from roost.model.records.workload import Workload
from roost.model.states import InstanceState, WorkloadState
from roost.schema.plans import PlanView
from roost.schema.rollouts import Back, VersionPage
from roost.schema.why import WhyView
from roost.schema.work import Accepted, Again, Chosen, SubmittedView, WorkloadDetail, WorkloadPage, WorkloadView
from roost.server.auth.principal import Redactor
from roost.server.engine.plan_tokens import new_token
from roost.server.operations.context import AsOf, Call, state_at
from roost.server.operations.parameters import After, At, Limit, MustExist, PlanToken, Rerun, SameOk
from roost.server.operations.permit import permit_filter, permit_wanted
from roost.server.operations.sharing.secrets import require_secrets
from roost.server.operations.work.documents import Documents, read_batch, read_one
from roost.server.operations.work.inputs import with_files
from roost.server.views.explain import plan_view, why_view
from roost.server.views.limits import Known, unenforced
from roost.server.views.schedules import schedule_view
from roost.server.views.versions import asked_for, difference, found, version_views
from roost.server.views.view_of import view_of
from roost.server.views.work import (
    live_view,
    workload_detail,
    workload_view,
)
from roost.server.waiting import ScanLimit, Slices

EACH = "each"

Diff = Annotated[str, Meta(max_length=30, description="`A..B`: what differs between two; `each`: of each.")]


async def submit(
    call: Call, document: Documents, same_ok: SameOk = False, must_exist: MustExist = False, plan: PlanToken = "",
    rerun: Rerun = False,
) -> SubmittedView:  # fmt: skip
    """Submit a workload. 201: created; 200: it exists already (with same_ok or a plan).

    A live workload of that name becomes a new version, if its document is another one. A finished job with the same
    document stays finished, unless `rerun` is set. `result` tells which it was. 409 `rejected`: it does not queue, and
    there is no room.
    """
    wanted = (await read_one(call, document),)
    _permit(call, wanted, must_exist)
    await require_secrets(call, wanted)
    async with with_files(call, wanted) as whole:
        (submitted,) = await call.ask(_submission(call, whole, same_ok, must_exist, plan, rerun))
    workload = call.engine.state.workloads.get(submitted.key)
    if workload is not None and workload.unstarted_end_state == InstanceState.REJECTED:
        reason = workload.reason
        params = {"workload": workload.key, "kind": reason.kind if isinstance(reason, PlacementRejected) else ""}
        raise Conflict(f"{workload.key} was rejected", code="rejected", reason=reason, params=params)
    return submitted_view(call, submitted, {})


async def submit_batch(
    call: Call, documents: Documents, same_ok: SameOk = False, must_exist: MustExist = False, plan: PlanToken = "",
    rerun: Rerun = False,
) -> Accepted:  # fmt: skip
    """Submit many workloads, all or none. The `result` of each is created, changed or unchanged."""
    wanted = await read_batch(call, documents)
    _permit(call, wanted, must_exist)
    await require_secrets(call, wanted, many=True)
    async with with_files(call, wanted, many=True) as whole:
        submitted = await call.ask(_submission(call, whole, same_ok, must_exist, plan, rerun))
    slices, items, known = Slices(), [], Known()
    for item in submitted:
        items.append(submitted_view(call, item, known))
        await slices.pause()
    return Accepted(items)


async def list_workloads(
    call: Call,
    project: str = "",
    name: str = "",
    only: WorkloadState | None = None,
    label: Annotated[str, Meta(description="Only those with this label: NAME, or NAME=VALUE.")] = "",
    limit: Limit = 100,
    after: After = "",
    at: At = "",
) -> AsOf[WorkloadPage]:
    """List workloads, newest first. 404: there is no such project, or none that the caller may see."""
    permit_filter(call.principal, project)
    seen, redactor = await state_at(call, at), call.redactor
    state = seen.state
    items: list[WorkloadView] = []
    if project and name:
        found = state.workloads.get(f"{project}/{name}") if not after else None
        items = [live_view(state, found, redactor.visible)] if found and _is_labelled(found, label) else []
        return seen.shows(WorkloadPage(state.revision, [view for view in items if not only or view.state == only]))
    scan = ScanLimit()
    for workload in older_than(state, after, redactor):
        is_seen = redactor.sees(workload.project)
        is_named = (not project or workload.project == project) and (not name or workload.name == name)
        if is_seen and is_named and _is_labelled(workload, label):
            view = live_view(state, workload, redactor.visible)
            if not only or view.state == only:
                items.append(view)
        if scan.is_over() or len(items) == limit:
            following = f"{workload.serial}:{workload.key if is_seen else ''}"
            return seen.shows(WorkloadPage(state.revision, items, following))
    return seen.shows(WorkloadPage(state.revision, items))


async def get_workload(call: Call, project: str, name: str, at: At = "") -> AsOf[WorkloadDetail]:
    """Show a workload: its document, its counts and its first instances; of a schedule, its ticks and last runs."""
    seen = await state_at(call, at)
    workload, visible = seen.workload(project, name), call.redactor.visible
    now_ms = seen.moment.at_ms if seen.moment is not None else call.now_ms
    return seen.shows(
        workload_detail(seen.state, workload, visible, schedule_view(seen.state, visible, workload, now_ms))
    )


async def why(
    call: Call,
    project: str,
    name: str,
    index: Annotated[int, Meta(ge=0)] | None = None,
    advice: Annotated[bool, Meta(description="Also what would help, and when it may start.")] = True,
) -> WhyView:
    """Explain why an instance is placed or pending. Without an index: the first pending one."""
    key, visible = f"{project}/{name}", call.redactor.visible

    def answer(state: State) -> WhyView:
        found = advise(state, key, index) if advice else (explain(state, key, index), Advice())
        return why_view(*found, visible)

    return await call.context.questions.ask(answer)


async def cancel(call: Call, project: str, name: str, fields: Chosen) -> WorkloadView:
    """Cancel a workload or one instance. Running ones are stopped first. Idempotent."""
    return await change_workload(call, project, name, lambda number, key: Cancel(number, key, fields.index))


async def retry(call: Call, project: str, name: str, fields: Again) -> WorkloadView:
    """Retry instances that did not succeed, or one instance whatever its result."""
    return await change_workload(
        call, project, name, lambda number, key: Retry(number, key, fields.index, fields.failed)
    )


async def delete_workload(call: Call, project: str, name: str) -> WorkloadView:
    """Delete a finished workload with its logs and results. The history keeps its record."""
    return await change_workload(call, project, name, Delete)


async def approve(call: Call, project: str, name: str) -> WorkloadView:
    """Approve a workload that waits for it, with the role that it asks for. Idempotent."""
    rank = call.principal.access.rank_in(project)
    return await change_workload(call, project, name, lambda number, key: Approve(number, key, rank))


async def change_workload(call: Call, project: str, name: str, make: Callable[[int, str], Event]) -> WorkloadView:
    """Ask for a change and show the workload after it, even if it is already deleted."""
    engine, key = call.engine, f"{project}/{name}"
    known, progress = engine.state.workloads.get(key), engine.state.progress.get(key)
    await call.ask(lambda number: make(number, key))
    state = engine.state
    if key in state.workloads or known is None:
        return live_view(state, _there(state, key), call.redactor.visible)
    begun, counts = (progress.placed_count, progress.counts) if progress else (0, {})
    return workload_view(known, begun, counts, visible=call.redactor.visible)


def older_than(state: State, after: str, redactor: Redactor) -> Iterator[Workload]:
    """Workloads, newest first, after the last of a page; by age if that one is gone."""
    everything = reversed(state.workloads.values())
    if not after:
        yield from everything
        return
    serial, _, key = after.partition(":")
    if not (serial.isascii() and serial.isdigit() and len(serial) <= 20):
        raise Invalid("after", "this is not the `next` of a page")
    last = state.workloads.get(key) if redactor.sees(key) else None  # a foreign one is as good as gone
    for workload in everything:
        if workload is last or (last is None and workload.serial < int(serial)):
            if workload is not last:
                yield workload
            break
    yield from everything


def _is_labelled(workload: Workload, label: str) -> bool:
    return not label or label in workload.policy.labels


def _permit(call: Call, wanted: tuple[WorkloadSpec, ...], must_exist: bool) -> None:
    for position, spec in enumerate(wanted if must_exist else ()):
        if not call.redactor.sees(spec.project):  # it does not exist for the caller
            path = f"[{position}].name" if len(wanted) > 1 else "name"
            raise NotFound(f"there is no workload {spec.key}", path=path, params={"workload": spec.key})
    permit_wanted(call.principal, wanted)


def _submission(
    call: Call, wanted: tuple[WorkloadSpec, ...], same_ok: bool, must_exist: bool, token: str, rerun: bool
) -> Callable[[int], Event]:
    """The event for the engine. A plan knows which workloads exist."""
    if not token:
        return lambda number: Submit(number, wanted, same_ok, None, must_exist, rerun)
    plan = call.context.plans.find(token, wanted, call.engine.clock.now_ms())
    return lambda number: Submit(number, wanted, True, plan, must_exist)


def submitted_view(call: Call, submitted: SubmitReply, known: Known) -> SubmittedView:
    state = call.engine.state
    workload = _there(state, submitted.key)
    view = live_view(state, workload, call.redactor.visible)
    return view_of(SubmittedView, view, result=submitted.result, unenforced=unenforced(state, workload, known))


def _there(state: State, key: str) -> Workload:
    workload = state.workloads.get(key)
    if workload is None:
        raise NotFound(f"{key} is over already and was swept away to make room")
    return workload


async def plan(call: Call, documents: Documents) -> PlanView:
    """Show what submitting workloads would do: placements, pending instances, preemptions. Nothing changes."""
    wanted = await read_batch(call, documents)
    permit_wanted(call.principal, wanted)
    await require_secrets(call, wanted, many=True)
    async with with_files(call, wanted, many=True) as whole:
        return await _plan(call, whole)


async def _plan(call: Call, wanted: tuple[WorkloadSpec, ...]) -> PlanView:
    plans, redactor, now_ms = call.context.plans, call.redactor, call.now_ms
    token = new_token()

    def answer(state: State) -> tuple[bytes, bytes]:
        made = make_plan(state, Submit(0, wanted, same_ok=True), now_ms)
        return pickle.dumps(made), msgspec.msgpack.encode(plan_view(made, token, state.revision, redactor))

    packed, view = await call.context.questions.ask(answer, call.principal.name)
    plans.add(token, packed, wanted, now_ms)
    return msgspec.msgpack.decode(view, type=PlanView)


async def list_versions(call: Call, project: str, name: str, diff: Diff = "", at: At = "") -> AsOf[VersionPage]:
    """List the versions of a workload: documents and differences."""
    seen = await state_at(call, at)
    workload, redactor = seen.workload(project, name), call.redactor
    lines: list[str] = []
    if diff and diff != EACH:
        old, new = (found(seen.state, workload, number) for number in asked_for(diff))
        lines = difference(old, new)
    items = list(version_views(seen.state, workload, compared=diff == EACH, visible=redactor.visible))
    return seen.shows(VersionPage(seen.state.revision, items, lines))


async def promote(call: Call, project: str, name: str) -> WorkloadView:
    """Promote the canaries of a rollout."""
    return await change_workload(call, project, name, lambda number, key: Promote(number, key))


async def rollback(call: Call, project: str, name: str, fields: Back) -> WorkloadView:
    """Roll back to an earlier version, which becomes a new one. Instances that still run it stay."""
    return await change_workload(call, project, name, lambda number, key: Rollback(number, key, fields.version or 0))
