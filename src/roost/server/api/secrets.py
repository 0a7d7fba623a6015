"""Secrets of projects: set, list, remove, seal again. A value comes in and never goes out by this door."""

import base64
import binascii
from heapq import nsmallest
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post, put
from litestar.params import FromPath, QueryParameter

from roost.model.document import decode_document, may_have_secrets, secrets_of
from roost.model.errors import Invalid, NotFound
from roost.model.events import Keep, Wanted
from roost.model.kept import Kept
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of
from roost.server.hooks_seal import reseal_hooks
from roost.server.secrets import KIND, Resealed, SecretView, check_key

PAGE_MAX = 1_000
BODY_BYTES_MAX = 256 << 10  # 32 KiB in which every byte is escaped as six

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class SecretPage(msgspec.Struct, frozen=True):
    """Secrets by name, without their values. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[SecretView]
    next: str | None = None


class SecretValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a secret: a text as `value`, or any bytes as `base64`."""

    value: str | None = None
    base64: str | None = None

    def __repr__(self) -> str:
        return "<the value of a secret>"


@get("/v1/projects/{project:str}/secrets", operation_id="list_secrets", responses=refusals(403, 404, 422, 503))
async def list_secrets(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    limit: PageLimit = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> SecretPage:
    """List the secrets of a project: names, sizes, who has changed them when. Values are never told."""
    doors = doors_of(request)
    state = await doors.engine.settled()
    kept, start = state.kept.get(KIND, {}), f"{project}/"
    keys = nsmallest(limit + 1, (key for key in kept if key.startswith(start) and key > start + after))
    items = [doors.secrets.view(key, kept[key]) for key in keys[:limit]]
    return SecretPage(state.revision, items, items[-1].name if len(keys) > limit else None)


@put(
    "/v1/projects/{project:str}/secrets/{name:str}",
    operation_id="set_secret",
    operation_class=taking(SecretValue),
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def set_secret(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> SecretView:
    """Set a secret of a project. Runs that begin from now on get this value; those that run keep theirs."""
    key = f"{project}/{name}"
    check_key(key)
    given = await read_fields(request, SecretValue, required=True, most=BODY_BYTES_MAX)
    secrets = doors_of(request).secrets
    record = secrets.record(key, _bytes(given), principal_of(request).name)
    await ask(request, lambda number: Keep(number, (record,)))
    assert record.value is not None
    return secrets.view(key, record.value)


@delete(
    "/v1/projects/{project:str}/secrets/{name:str}",
    operation_id="remove_secret",
    status_code=204,
    responses=refusals(403, 404, 409, 422, 503),
)
async def remove_secret(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> None:
    """Forget a secret. What runs keeps it; what refers to it and has not begun will fail to start."""
    state = await doors_of(request).engine.settled()
    key = f"{project}/{name}"
    known = state.kept.get(KIND, {}).get(key)
    if known is None:
        raise NotFound(f"there is no secret {name:.100} in project {project:.100}")
    await ask(request, lambda number: Keep(number, (Kept(KIND, key, None, known),)))


@post("/v1/secrets/reseal", operation_id="reseal_secrets", status_code=200, responses=refusals(403, 409, 503))
async def reseal_secrets(request: Request[Any, Any, Any]) -> Resealed:
    """Seal the secrets of all projects again with the server's newest key. Afterwards older keys are not needed."""
    doors = doors_of(request)
    done = await doors.secrets.reseal(lambda make: ask(request, make))
    if doors.hooks is None:
        return done
    more = await reseal_hooks(doors.engine, doors.hooks.seal, lambda make: ask(request, make))
    return Resealed(done.resealed + more.resealed, [*done.unreadable, *more.unreadable])


async def require_secrets(request: "Request[Any, Any, Any]", wanted: tuple[Wanted, ...], *, many: bool = False) -> None:
    """Refuse workloads that refer to secrets which are not there. Whoever asks may submit to these projects."""
    for number, each in enumerate(wanted):
        if not may_have_secrets(each.document):
            continue
        state = await doors_of(request).engine.settled()
        known = state.kept.get(KIND, {})
        for variable, name in secrets_of(decode_document(each.document)).items():
            if f"{each.project}/{name}" not in known:
                words = f"project {each.project} has no secret {name}; `roost secrets set {each.project}/{name}`"
                raise Invalid(f"{f'[{number}].' if many else ''}env.{variable:.60}", words, code="no_such_secret")


def _bytes(given: SecretValue) -> bytes:
    if (given.value is None) == (given.base64 is None):
        raise Invalid("value", "give either `value`, a text, or `base64`")
    if given.value is not None:
        try:
            return given.value.encode()
        except UnicodeEncodeError:
            raise Invalid("value", "this is not text that can be passed to a program; send `base64`") from None
    assert given.base64 is not None
    try:
        return base64.b64decode(given.base64, validate=True)
    except (binascii.Error, ValueError):
        raise Invalid("base64", "this is not base64") from None
