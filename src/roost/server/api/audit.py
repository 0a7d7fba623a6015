"""Audit: who changed what, from where, newest first. The last thousand changes; history keeps them for longer."""

from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import QueryParameter

from roost.model.audit import Audit
from roost.server.api.doors import doors_of
from roost.server.api.errors import refusals

PAGE_MAX = 1_000  # as many as are kept
NUMBER_MAX = 1 << 53  # exact in JSON

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class AuditPage(msgspec.Struct, frozen=True):
    """Changes, newest first. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[Audit]
    next: int | None = None


@get("/v1/audit", operation_id="audit", responses=refusals(403, 422, 503))
async def audit(
    request: Request[Any, Any, Any],
    who: Annotated[str, QueryParameter(description="root, token:NAME or user:SUBJECT; or only NAME or SUBJECT.")] = "",
    what: Annotated[str, QueryParameter(description="The kind of the change, such as `submit` or `drain`.")] = "",
    limit: PageLimit = 100,
    after: Annotated[int, QueryParameter(ge=0, le=NUMBER_MAX, description="`next` of the page before.")] = 0,
) -> AuditPage:
    """List changes that somebody asked for and that were made, newest first."""
    state = await doors_of(request).engine.settled()
    entries = map(_DECODER.decode, state.kept.get("audit", {}).values())
    found = [
        each
        for each in entries
        if (not after or each.number < after) and (not what or each.what == what) and (not who or _is(each.who, who))
    ]
    found.sort(key=lambda each: -each.number)
    items = found[:limit]
    return AuditPage(state.revision, items, items[-1].number if len(found) > limit else None)


def _is(name: str, who: str) -> bool:
    return who in (name, name.partition(":")[2])


_DECODER = msgspec.msgpack.Decoder(Audit)
