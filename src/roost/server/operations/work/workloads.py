"""Workloads and their versions: submit, plan, list, show, explain, cancel, retry, promote, roll back."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from msgspec import Meta

from roost.core.explain.advice import Advice, advise
from roost.core.explain.plan import make_plan
from roost.core.explain.why import why as explain
from roost.core.state.state import State
from roost.core.step import step
from roost.model.errors import Invalid, NotFound
from roost.model.events import Cancel, Event, Promote, Retry, Rollback, Submit, SubmitReply, WorkloadSpec
from roost.model.records.plan import Plan
from roost.model.records.workload import Workload
from roost.model.spec.submission import spec_of_document
from roost.schema.plans import PlanView
from roost.schema.rollouts import Back, VersionPage
from roost.schema.why import WhyView
from roost.schema.work import Accepted, Again, Chosen, SubmittedView, WorkloadDetail, WorkloadPage, WorkloadView
from roost.server.auth.principal import Redactor
from roost.server.operations.context import AsOf, Call, state_at
from roost.server.operations.parameters import After, At, Limit, MustExist, PlanToken, SameOk, WorkloadState
from roost.server.operations.permit import permit_wanted
from roost.server.operations.sharing.secrets import require_secrets
from roost.server.views.explain import plan_view, why_view
from roost.server.views.view_of import view_of
from roost.server.views.work import (
    asked_for,
    difference,
    found,
    live_view,
    version_views,
    workload_detail,
    workload_view,
)

BATCH_MAX = 10_000  # documents in one request: one step of the engine, some hundred milliseconds
CHECKED_AT_ONCE = 200  # documents checked before others get their turn: some milliseconds
SCAN_MAX = 10_000  # workloads looked at for one page: a filter that matches little costs some ten milliseconds

EACH = "each"

Diff = Annotated[str, Meta(max_length=30, description="`A..B`: what differs between two; `each`: of each.")]


async def submit(
    call: Call, document: Any, same_ok: SameOk = False, must_exist: MustExist = False, plan: PlanToken = ""
) -> SubmittedView:
    """Submit a workload. 201: created; 200: it exists already (with same_ok or a plan).

    A live workload of that name becomes a new version, if its document is another one. `result` tells which it was.
    """
    wanted = (spec_of_document(document),)
    make = _submission(call, wanted, same_ok, must_exist, plan)
    await require_secrets(call, wanted)
    (submitted,) = await call.ask(make)
    return _submitted(call, submitted)


async def submit_batch(
    call: Call, documents: Any, same_ok: SameOk = False, must_exist: MustExist = False, plan: PlanToken = ""
) -> Accepted:
    """Submit many workloads, all or none. The `result` of each is created, changed or unchanged."""
    wanted = await read_batch(documents)
    make = _submission(call, wanted, same_ok, must_exist, plan)
    await require_secrets(call, wanted, many=True)
    return Accepted([_submitted(call, item) for item in await call.ask(make)])


async def read_batch(documents: Any) -> tuple[WorkloadSpec, ...]:
    if not isinstance(documents, list):
        raise Invalid("$", "a batch is a list of workloads")
    if not 1 <= len(documents) <= BATCH_MAX:
        raise Invalid("$", f"a batch has 1 to {BATCH_MAX:,} workloads, not {len(documents):,}")
    wanted: list[WorkloadSpec] = []
    for number, document in enumerate(documents):
        wanted.append(spec_of_document(document, f"[{number}]"))
        if number % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
            await asyncio.sleep(0)
    return tuple(wanted)


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
    """List workloads, newest first."""
    seen, redactor = await state_at(call, at), call.redactor
    state = seen.state
    items: list[WorkloadView] = []
    if project and (name or not redactor.sees(project)):
        found = state.workloads.get(f"{project}/{name}") if redactor.sees(project) and not after else None
        items = [live_view(state, found, redactor.visible)] if found and _is_labelled(found, label) else []
        return seen.shows(WorkloadPage(state.revision, [view for view in items if not only or view.state == only]))
    for scanned, workload in enumerate(older_than(state, after, redactor), start=1):
        is_seen = redactor.sees(workload.project)
        is_named = (not project or workload.project == project) and (not name or workload.name == name)
        if is_seen and is_named and _is_labelled(workload, label):
            view = live_view(state, workload, redactor.visible)
            if not only or view.state == only:
                items.append(view)
        if len(items) == limit or scanned == SCAN_MAX:
            following = f"{workload.serial}:{workload.key if is_seen else ''}"
            return seen.shows(WorkloadPage(state.revision, items, following))
    return seen.shows(WorkloadPage(state.revision, items))


async def get_workload(call: Call, project: str, name: str, at: At = "") -> AsOf[WorkloadDetail]:
    """Show a workload: its document, its counts and its first instances."""
    seen = await state_at(call, at)
    return seen.shows(workload_detail(seen.state, seen.workload(project, name), call.redactor.visible))


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


def _submission(
    call: Call, wanted: tuple[WorkloadSpec, ...], same_ok: bool, must_exist: bool, token: str
) -> Callable[[int], Event]:
    """The event for the engine. A plan knows which workloads exist."""
    for position, spec in enumerate(wanted if must_exist else ()):
        if not call.redactor.sees(spec.project):  # it does not exist for the caller
            path = f"[{position}].name" if len(wanted) > 1 else "name"
            raise NotFound(f"there is no workload {spec.key}", path=path, params={"workload": spec.key})
    permit_wanted(call.principal, wanted)
    if not token:
        return lambda number: Submit(number, wanted, same_ok, must_exist=must_exist)
    plan = call.context.plans.find(token, wanted, call.engine.clock.now_ms())
    return lambda number: Submit(number, wanted, True, plan, must_exist)


def _submitted(call: Call, submitted: SubmitReply) -> SubmittedView:
    state = call.engine.state
    view = live_view(state, _there(state, submitted.key), call.redactor.visible)
    return view_of(SubmittedView, view, result=submitted.result)


def _there(state: State, key: str) -> Workload:
    workload = state.workloads.get(key)
    if workload is None:
        raise NotFound(f"{key} is over already and was swept away to make room")
    return workload


async def plan(call: Call, documents: Any) -> PlanView:
    """Show what submitting workloads would do: placements, pending instances, preemptions. Nothing changes."""
    wanted = await read_batch(documents)
    permit_wanted(call.principal, wanted)
    await require_secrets(call, wanted, many=True)
    clock = call.engine.clock

    def answer(state: State) -> tuple[Plan, int]:
        return make_plan(step, state, Submit(0, wanted, same_ok=True), clock.now_ms()), state.revision

    made, revision = await call.context.questions.ask(answer)
    return plan_view(made, call.context.plans.add(made, wanted, clock.now_ms()), revision, call.redactor)


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
