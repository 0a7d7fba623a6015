"""Workloads: submit, list, look at, ask why, cancel, retry."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, QueryParameter

from roost.core.advise import Advice, advise
from roost.core.explain import why
from roost.core.state import State
from roost.model.document import Document
from roost.model.errors import Invalid, NotFound
from roost.model.events import Cancel, Event, Retry, Submit, Wanted
from roost.model.submission import wanted_of
from roost.model.workload import Workload
from roost.server.api.at import AT_HEADERS, At, look
from roost.server.api.bodies import read_data, read_fields, taking
from roost.server.api.doors import ask, doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import permit_wanted, principal_of
from roost.server.api.secrets import require_secrets
from roost.server.auth_veil import Veil
from roost.server.plans import Plans
from roost.server.views import WorkloadDetail, WorkloadView, live_view, workload_detail, workload_view
from roost.server.why import WhyView, why_view

BATCH_MAX = 10_000  # documents in one request: one step of the engine, some hundred milliseconds
CHECKED_AT_ONCE = 200  # documents checked before others get their turn: some milliseconds
PAGE_MAX = 1_000
SCAN_MAX = 10_000  # workloads looked at for one page: a filter that matches little costs some ten milliseconds

WorkloadState = Literal[
    "queued", "running", "stopping", "succeeded", "failed", "timed_out", "cancelled", "expired", "rejected"
]
SameOk = Annotated[
    bool, QueryParameter(description="What lives already is no conflict: another document makes a new version of it.")
]
MustExist = Annotated[
    bool,
    QueryParameter(
        description="Only change what lives: an unknown or finished name is not found, and nothing is made. "
        "This says same_ok, too."
    ),
]
Planned = Annotated[str, QueryParameter(description="`token` of a plan: do exactly that, or nothing.")]
PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class WorkloadPage(msgspec.Struct, frozen=True):
    """Workloads, newest first. There are more as long as `next` is given (for `after`); a page may be short."""

    revision: int
    items: list[WorkloadView]
    next: str | None = None


class SubmittedView(WorkloadView, frozen=True, kw_only=True):
    """A workload that was submitted, and what became of that: it is new, has a new version, or was there already."""

    result: Literal["created", "changed", "unchanged"]


class Accepted(msgspec.Struct, frozen=True):
    """What became of the documents of a batch, in their order."""

    items: list[SubmittedView]


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One instance of a workload; none named: all of them."""

    index: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Again(Chosen, frozen=True, forbid_unknown_fields=True):
    """What to run again. `failed`: only what failed or ran out of time, not what was cancelled or expired."""

    failed: bool = False


@post(
    "/v1/workloads",
    operation_id="submit",
    operation_class=taking(Document),
    responses={
        200: ResponseSpec(SubmittedView, generate_examples=False),
        **refusals(403, 404, 409, 413, 415, 422, 503),
    },
)
async def submit(
    request: Request[Any, Any, Any], same_ok: SameOk = False, must_exist: MustExist = False, plan: Planned = ""
) -> Response[SubmittedView]:
    """Submit a workload. 201: it was taken in; 200: it was there already (with same_ok or a plan).

    What is there already and lives becomes a new version, if its document is another one. `result` tells which it was.
    """
    engine = doors_of(request).engine
    wanted = (wanted_of(await read_data(request)),)
    make = _submission(request, wanted, same_ok, must_exist, plan)
    await require_secrets(request, wanted)
    known = _known(engine.state, wanted)
    (key,) = await ask(request, make)
    view = _submitted(engine.state, veil_of(request), key, known)
    return Response(view, status_code=201 if view.result == "created" else 200)


@post(
    "/v1/workloads/batch",
    operation_id="submit_batch",
    operation_class=taking(Document, many=BATCH_MAX),
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def submit_batch(
    request: Request[Any, Any, Any], same_ok: SameOk = False, must_exist: MustExist = False, plan: Planned = ""
) -> Accepted:
    """Submit many workloads: all of them are taken in, or none. The `result` of each tells what became of it."""
    engine, veil = doors_of(request).engine, veil_of(request)
    wanted = await read_batch(request)
    make = _submission(request, wanted, same_ok, must_exist, plan)
    await require_secrets(request, wanted, many=True)
    known = _known(engine.state, wanted)
    keys = await ask(request, make)
    return Accepted([_submitted(engine.state, veil, key, known) for key in keys])


async def read_batch(request: Request[Any, Any, Any]) -> tuple[Wanted, ...]:
    """The workloads of a body that is a list, each checked."""
    documents = await read_data(request)
    if not isinstance(documents, list):
        raise Invalid("$", "a batch is a list of workloads")
    if not 1 <= len(documents) <= BATCH_MAX:
        raise Invalid("$", f"a batch has 1 to {BATCH_MAX:,} workloads, not {len(documents):,}")
    wanted: list[Wanted] = []
    for number, document in enumerate(documents):
        wanted.append(wanted_of(document, f"[{number}]"))
        if number % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
            await asyncio.sleep(0)
    return tuple(wanted)


def plans_of(request: Request[Any, Any, Any]) -> Plans:
    """The plans that were made here."""
    plans = request.app.state["plans"]
    assert isinstance(plans, Plans)
    return plans


@get(
    "/v1/workloads",
    operation_id="list_workloads",
    responses=refusals(403, 404, 422, 503),
    response_headers=AT_HEADERS,
)
async def list_workloads(
    request: Request[Any, Any, Any],
    project: FromQuery[str] = "",
    name: FromQuery[str] = "",
    only: Annotated[WorkloadState | None, QueryParameter(name="state")] = None,
    label: Annotated[str, QueryParameter(description="Only those with this label: NAME, or NAME=VALUE.")] = "",
    limit: PageLimit = 100,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
    at: At = "",
) -> Response[WorkloadPage]:
    """List workloads, newest first."""
    seen = await look(request, at)
    return seen.shows(_page(seen.state, veil_of(request), project, name, only, label, limit, after))


def _page(
    state: State, veil: Veil, project: str, name: str, only: WorkloadState | None, label: str, limit: int, after: str
) -> WorkloadPage:
    if project and not veil.sees(project):
        return WorkloadPage(state.revision, [])
    if project and name:
        found = state.workloads.get(f"{project}/{name}")
        views = [veil.workload(live_view(state, found))] if found and not after and _is_labelled(found, label) else []
        return WorkloadPage(state.revision, [view for view in views if not only or view.state == only])
    items: list[WorkloadView] = []
    for seen, workload in enumerate(older_than(state, after, veil), start=1):
        is_seen = veil.sees(workload.project)
        is_named = (not project or workload.project == project) and (not name or workload.name == name)
        if is_seen and is_named and _is_labelled(workload, label):
            view = live_view(state, workload)
            if not only or view.state == only:
                items.append(veil.workload(view))
        if len(items) == limit or seen == SCAN_MAX:
            return WorkloadPage(state.revision, items, f"{workload.serial}:{workload.key if is_seen else ''}")
    return WorkloadPage(state.revision, items)


def _is_labelled(workload: Workload, label: str) -> bool:
    return not label or label in workload.policy.labels


@get(
    "/v1/workloads/{project:str}/{name:str}",
    operation_id="get_workload",
    responses=refusals(403, 404, 422, 503),
    response_headers=AT_HEADERS,
)
async def get_workload(
    request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str], at: At = ""
) -> Response[WorkloadDetail]:
    """Look at a workload: its document, its counts and its first instances."""
    seen = await look(request, at)
    detail = workload_detail(seen.state, seen.workload(project, name))
    return seen.shows(veil_of(request).workload(detail))


@get("/v1/workloads/{project:str}/{name:str}/why", operation_id="why", responses=refusals(403, 404, 422, 503))
async def get_why(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    name: FromPath[str],
    index: Annotated[int | None, QueryParameter(ge=0)] = None,
    advice: Annotated[bool, QueryParameter(description="Also what would help, and when it may start.")] = True,
) -> WhyView:
    """Why an instance is where it is, or nowhere. Without an index: the first that waits."""
    state = await doors_of(request).engine.settled()
    if not advice:
        return veil_of(request).why(why_view(why(state, f"{project}/{name}", index), Advice()))
    return veil_of(request).why(why_view(*advise(state, f"{project}/{name}", index)))


@post(
    "/v1/workloads/{project:str}/{name:str}/cancel",
    operation_id="cancel",
    operation_class=taking(Chosen, required=False),
    status_code=200,
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def cancel(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> WorkloadView:
    """Cancel a workload or one instance. What runs is stopped first; cancelling twice is fine."""
    index = (await read_fields(request, Chosen)).index
    key = f"{project}/{name}"
    return await change_workload(request, key, lambda number: Cancel(number, key, index))


@post(
    "/v1/workloads/{project:str}/{name:str}/retry",
    operation_id="retry",
    operation_class=taking(Again, required=False),
    status_code=200,
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def retry(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> WorkloadView:
    """Run again what ended otherwise than well, or one instance however it ended."""
    again = await read_fields(request, Again)
    key = f"{project}/{name}"
    return await change_workload(request, key, lambda number: Retry(number, key, again.index, again.failed))


async def change_workload(request: Request[Any, Any, Any], key: str, make: Callable[[int], Event]) -> WorkloadView:
    """Ask for a change and show the workload after it; one that is not kept is over and gone by then."""
    engine, veil = doors_of(request).engine, veil_of(request)
    known, progress = engine.state.workloads.get(key), engine.state.progress.get(key)
    await ask(request, make)
    state = engine.state
    if key in state.workloads or known is None:
        return veil.workload(live_view(state, _there(state, key)))
    last = workload_view(known, progress.begun, progress.counts) if progress else workload_view(known, 0, {})
    return veil.workload(last)


def _submission(
    request: Request[Any, Any, Any], wanted: tuple[Wanted, ...], same_ok: bool, must_exist: bool, token: str
) -> Callable[[int], Event]:
    """What is put to the engine. What was planned knows what is there already."""
    if must_exist:
        _require_seen(veil_of(request), wanted)
    permit_wanted(principal_of(request), wanted)
    if not token:
        return lambda number: Submit(number, wanted, same_ok, must_exist=must_exist)
    plan = plans_of(request).find(token, wanted, doors_of(request).engine.clock.now_ms())
    return lambda number: Submit(number, wanted, True, plan, must_exist)


def _require_seen(veil: Veil, wanted: tuple[Wanted, ...]) -> None:
    """What is to be changed in a foreign project is as good as not there."""
    for position, each in enumerate(wanted):
        if not veil.sees(each.project):
            path = f"[{position}].name" if len(wanted) > 1 else "name"
            raise NotFound(f"there is no workload {each.project}/{each.name}", path=path)


def _known(state: State, wanted: tuple[Wanted, ...]) -> dict[str, tuple[int, int]]:
    """How old those are that are there already, and their versions."""
    found = [state.workloads.get(f"{each.project}/{each.name}") for each in wanted]
    return {each.key: (each.serial, each.version) for each in found if each is not None}


def _submitted(state: State, veil: Veil, key: str, known: dict[str, tuple[int, int]]) -> SubmittedView:
    workload = _there(state, key)
    serial, version = known.get(key, (0, 0))
    is_new = workload.serial != serial
    result: Literal["created", "changed", "unchanged"] = (
        "created" if is_new else "changed" if workload.version != version else "unchanged"
    )
    view = veil.workload(live_view(state, workload))
    return SubmittedView(**{name: getattr(view, name) for name in view.__struct_fields__}, result=result)


def _there(state: State, key: str) -> Workload:
    workload = state.workloads.get(key)
    if workload is None:
        raise NotFound(f"{key} is over already and was swept away to make room")
    return workload


def older_than(state: State, after: str, veil: Veil) -> Iterator[Workload]:
    """Workloads, newest first, from the one after the last of a page; by age if that one is gone."""
    everything = reversed(state.workloads.values())
    if not after:
        yield from everything
        return
    serial, _, key = after.partition(":")
    if not (serial.isascii() and serial.isdigit() and len(serial) <= 20):
        raise Invalid("after", "this is not the `next` of a page")
    last = state.workloads.get(key) if veil.sees(key) else None  # a foreign one is as good as gone
    for workload in everything:
        if workload is last or (last is None and workload.serial < int(serial)):
            if workload is not last:
                yield workload
            break
    yield from everything
