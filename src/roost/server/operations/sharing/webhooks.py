"""Hooks: set, list, remove, try. A signing secret comes in and never goes out by this door."""

from urllib.parse import urlsplit

import msgspec

from roost.model.errors import Invalid, NotFound
from roost.model.records.access import EVERYWHERE, OPERATOR
from roost.model.records.opaque import OpaqueRecord
from roost.model.records.webhook import Hook, check_hook, check_secret
from roost.schema.webhooks import HookBody, HookPage, HookTried, HookView
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of
from roost.server.pki.secrets import bound, decode_hook, encode
from roost.server.views.view_of import view_of
from roost.server.webhooks.channel import Channel, DeliveryCounts
from roost.server.webhooks.destinations import literal_of
from roost.server.webhooks.dispatcher import KIND, Hooks


async def list_hooks(call: Call, limit: Limit = PAGE_MAX, after: After = "") -> HookPage:
    """List the webhooks of projects in which you are an operator."""
    kept, hooks, access = await call.records(KIND), call.context.hooks, call.principal.access
    own = (key for key in (*kept, *hooks.commands) if access.covers((key.partition("/")[0],), OPERATOR))
    keys, following = page_of(own, limit, after)
    return HookPage(call.engine.state.revision, [_view(hooks, key, kept.get(key)) for key in keys], following)


async def get_hook(call: Call, project: str, name: str) -> HookView:
    """One webhook and its deliveries. Project `*`: a hook of all projects."""
    hooks, key = call.context.hooks, f"{project}/{name}"
    record = (await call.records(KIND)).get(key)
    if record is None and key not in hooks.commands:
        raise _unknown(project, name)
    return _view(hooks, key, record)


async def set_hook(call: Call, project: str, name: str, given: HookBody) -> HookView:
    """Set a webhook. It receives events from now on; an existing one keeps its pending events."""
    hooks, key = call.context.hooks, f"{project}/{name}"
    hook = Hook(given.url, given.events, given.workload, given.enabled)
    check_hook(project, name, hook)
    _check_place(given.url, hooks)
    sealed = _sealed(hooks, key, given.secret)
    record = (await call.records(KIND)).get(key)
    known = decode_hook(record) if record is not None else None
    hook = msgspec.structs.replace(
        hook,
        sealed=(known.sealed if known else b"") if sealed is None else sealed,
        since=known.since if known and known.enabled else call.engine.state.revision,
        changed_ms=call.now_ms,
        changed_by=call.principal.name,
    )
    kept = encode(hook)
    await call.put(OpaqueRecord(KIND, key, kept, record))
    return _view(hooks, key, kept)


async def remove_hook(call: Call, project: str, name: str) -> None:
    """Delete a webhook and its pending events."""
    key = f"{project}/{name}"
    known = (await call.records(KIND)).get(key)
    if known is None:
        raise _unknown(project, name)
    await call.put(OpaqueRecord(KIND, key, None, known))


async def test_hook(call: Call, project: str, name: str) -> HookTried:
    """Send a ping at once and return the status of the answer."""
    outcome, took_ms = await call.context.hooks.test(f"{project}/{name}")
    return HookTried(ok=outcome.ok, code=outcome.code or None, message=outcome.message, took_ms=took_ms)


def _check_place(url: str, hooks: Hooks) -> None:
    """Refuse literal addresses now; names are resolved when a message is sent."""
    host = urlsplit(url).hostname or ""
    literal = literal_of(host)
    refusal = hooks.destinations.refusal(literal) if literal is not None else ""
    if refusal:
        raise Invalid("url", refusal, code="address_refused")


def _sealed(hooks: Hooks, key: str, secret: str | None | msgspec.UnsetType) -> bytes | None:
    """The encrypted secret; None: unchanged."""
    if secret is msgspec.UNSET:
        return None
    if secret is None:
        return b""
    try:
        value = secret.encode()
    except UnicodeEncodeError:
        raise Invalid("secret", "this is not text") from None
    check_secret(value, "secret")
    return hooks.seal.seal(bound(KIND, key), value)


def _view(hooks: Hooks, key: str, record: bytes | None) -> HookView:
    project, _, name = key.partition("/")
    command = hooks.commands.get(key)
    hook = Hook("", command.events) if command is not None else decode_hook(record or b"")
    channel: Channel | None = hooks.channels.get(key)
    counts = channel.counts if channel is not None else DeliveryCounts()
    return view_of(
        HookView,
        hook,
        counts,
        project=project,
        name=name,
        command=command is not None,
        signed=bool(hook.sealed),
        waiting=channel.waiting if channel is not None else 0,
        last_code=counts.last_code or None,
        missing=channel.missing if channel is not None else "",
    )


def _unknown(project: str, name: str) -> NotFound:
    whose = "of all projects" if project == EVERYWHERE else f"in project {project:.100}"
    return NotFound(f"there is no hook {name:.100} {whose}")
