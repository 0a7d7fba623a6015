"""Hooks: set, list, remove, try. A signing secret comes in and never goes out by this door."""

from heapq import nsmallest
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from litestar import Request, delete, get, post, put
from litestar.params import FromPath, QueryParameter

from roost.model.access import ADMIN, EVERYWHERE, OPERATOR
from roost.model.errors import Forbidden, Invalid, NotFound
from roost.model.events import Keep
from roost.model.hook import DEFAULT_EVENTS, Hook, check_hook, check_secret
from roost.model.kept import Kept
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of
from roost.server.hooks import KIND, Hooks, bound, decode_hook, encode_hook
from roost.server.hooks_channel import Channel, Counts
from roost.server.hooks_post import literal_of, refusal_of

PAGE_MAX = 1_000
BODY_BYTES_MAX = 64 << 10  # a URL, fifty names and a secret, every byte escaped as six

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class HookBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook: where messages go, and of what. `secret`: as it was, if nothing is said; null: none."""

    url: str
    events: tuple[str, ...] = DEFAULT_EVENTS
    workload: str = ""
    enabled: bool = True
    secret: str | None | msgspec.UnsetType = msgspec.UNSET

    def __repr__(self) -> str:
        return "<a hook>"


class HookView(msgspec.Struct, frozen=True, kw_only=True):
    """A hook as it is shown: never its secret. What is counted is counted since the server leads that was asked."""

    project: str
    name: str
    url: str
    command: bool  # of the server's own settings
    events: list[str]
    workload: str
    enabled: bool
    signed: bool
    changed_ms: int
    changed_by: str
    delivered: int = 0
    failed: int = 0
    given_up: int = 0
    dropped: int = 0
    waiting: int = 0
    last_ms: int | None = None
    last_code: int | None = None
    last_error: str = ""
    missing: str = ""


class HookPage(msgspec.Struct, frozen=True):
    """Hooks by project and name. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[HookView]
    next: str | None = None


class HookTried(msgspec.Struct, frozen=True, kw_only=True):
    """How a ping went. `code`: the status that was answered, or the exit code of a command."""

    ok: bool
    code: int | None
    words: str
    took_ms: int


@get("/v1/hooks", operation_id="list_hooks", responses=refusals(403, 422, 503))
async def list_hooks(
    request: Request[Any, Any, Any],
    limit: PageLimit = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> HookPage:
    """List the hooks of projects in which you are an operator; of all projects, if you are one everywhere."""
    state = await doors_of(request).engine.settled()
    hooks, access = hooks_of(request), principal_of(request).access
    known = (*state.kept.get(KIND, {}), *hooks.commands)
    own = (key for key in known if key > after and access.covers((key.partition("/")[0],), OPERATOR))
    keys = nsmallest(limit + 1, own)
    items = [_view(hooks, key, state.kept.get(KIND, {}).get(key)) for key in keys[:limit]]
    return HookPage(state.revision, items, keys[limit - 1] if len(keys) > limit else None)


@get(
    "/v1/projects/{project:str}/hooks/{name:str}", operation_id="get_hook", responses=refusals(403, 404, 503)
)  # fmt: skip
async def get_hook(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> HookView:
    """One hook: what it is told, and how that goes. Project `*`: a hook of all projects."""
    state = await doors_of(request).engine.settled()
    hooks, key = hooks_of(request), f"{project}/{name}"
    record = state.kept.get(KIND, {}).get(key)
    if record is None and key not in hooks.commands:
        raise _unknown(project, name)
    return _view(hooks, key, record)


@put(
    "/v1/projects/{project:str}/hooks/{name:str}",
    operation_id="set_hook",
    operation_class=taking(HookBody),
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def set_hook(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> HookView:
    """Set a hook. It is told of what happens from now on; one that is there keeps what waits for it."""
    _require_admin(request, project)
    given = await read_fields(request, HookBody, required=True, most=BODY_BYTES_MAX)
    hooks, key = hooks_of(request), f"{project}/{name}"
    fields = {"url": given.url, "events": given.events, "workload": given.workload, "enabled": given.enabled}
    check_hook(project, name, Hook(**fields))  # type: ignore[arg-type]
    _check_place(given.url, hooks)
    engine = doors_of(request).engine
    sealed = _sealed(hooks, key, given.secret)
    state = await engine.settled()
    record = state.kept.get(KIND, {}).get(key)
    known = decode_hook(record) if record is not None else None
    goes_on = known is not None and known.enabled
    hook = Hook(
        **fields,  # type: ignore[arg-type]
        sealed=(known.sealed if known else b"") if sealed is None else sealed,
        since=known.since if known and goes_on else state.revision,
        changed_ms=engine.clock.now_ms(),
        changed_by=principal_of(request).name,
    )
    kept = Kept(KIND, key, encode_hook(hook), record)
    await ask(request, lambda number: Keep(number, (kept,)))
    return _view(hooks, key, kept.value)


@delete(
    "/v1/projects/{project:str}/hooks/{name:str}",
    operation_id="remove_hook",
    status_code=204,
    responses=refusals(403, 404, 409, 503),
)
async def remove_hook(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> None:
    """Forget a hook, and what waits for it."""
    _require_admin(request, project)
    state = await doors_of(request).engine.settled()
    key = f"{project}/{name}"
    known = state.kept.get(KIND, {}).get(key)
    if known is None:
        raise _unknown(project, name)
    await ask(request, lambda number: Keep(number, (Kept(KIND, key, None, known),)))


@post(
    "/v1/projects/{project:str}/hooks/{name:str}/test",
    operation_id="test_hook",
    status_code=200,
    responses=refusals(403, 404, 503),
)
async def test_hook(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> HookTried:
    """Send a ping at once, and say what was answered. Of the answer only its status is told."""
    _require_admin(request, project)
    outcome, took_ms = await hooks_of(request).test(f"{project}/{name}")
    return HookTried(ok=outcome.ok, code=outcome.code or None, words=outcome.words, took_ms=took_ms)


def hooks_of(request: "Request[Any, Any, Any]") -> Hooks:
    """The hooks of this server."""
    hooks = doors_of(request).hooks
    assert hooks is not None, "a server that serves has hooks"
    return hooks


def _require_admin(request: "Request[Any, Any, Any]", project: str) -> None:
    """A hook of all projects tells somebody of everybody's work: that is for admins, not for operators."""
    if project == EVERYWHERE and principal_of(request).access.everywhere < ADMIN:
        raise Forbidden("a hook of all projects needs the role admin everywhere")


def _check_place(url: str, hooks: Hooks) -> None:
    """What can be seen to be refused is refused now; names are looked at when a message goes there."""
    host = urlsplit(url).hostname or ""
    literal = literal_of("127.0.0.1" if host == "localhost" or host.endswith(".localhost") else host)
    refusal = refusal_of(literal, to_loopback=hooks.to_loopback) if literal is not None else ""
    if refusal:
        raise Invalid("url", refusal, code="address_refused")


def _sealed(hooks: Hooks, key: str, secret: str | None | msgspec.UnsetType) -> bytes | None:
    """The secret as it is stored; None: as it was."""
    if secret is msgspec.UNSET:
        return None
    if secret is None:
        return b""
    try:
        value = secret.encode()
    except UnicodeEncodeError:
        raise Invalid("secret", "this is not text") from None
    check_secret(value, "secret")
    return hooks.seal.seal(bound(key), value)


def _view(hooks: Hooks, key: str, record: bytes | None) -> HookView:
    project, _, name = key.partition("/")
    command = hooks.commands.get(key)
    hook = Hook("", command.events) if command is not None else decode_hook(record or b"")
    channel: Channel | None = hooks.channels.get(key)
    counts = channel.counts if channel is not None else Counts()
    return HookView(
        project=project,
        name=name,
        url=hook.url,
        command=command is not None,
        events=list(hook.events),
        workload=hook.workload,
        enabled=hook.enabled,
        signed=bool(hook.sealed),
        changed_ms=hook.changed_ms,
        changed_by=hook.changed_by,
        delivered=counts.delivered,
        failed=counts.failed,
        given_up=counts.given_up,
        dropped=counts.dropped,
        waiting=channel.waiting if channel is not None else 0,
        last_ms=counts.last_ms or None,
        last_code=counts.last_code or None,
        last_error=counts.last_error,
        missing=channel.missing if channel is not None else "",
    )


def _unknown(project: str, name: str) -> NotFound:
    whose = "of all projects" if project == EVERYWHERE else f"in project {project:.100}"
    return NotFound(f"there is no hook {name:.100} {whose}")
