"""Backup: everything that is stored, as of one revision, while the server goes on."""

from typing import Any

import msgspec
from litestar import Request, Response, get

from roost.ports.store import Snapshot
from roost.server.api.doors import doors_of
from roost.server.api.errors import refusals
from roost.server.journal import records_of


@get("/v1/backup", operation_id="backup", media_type="application/octet-stream", responses=refusals(403, 503))
async def backup(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Everything as it is stored, for `roost store backup`; msgpack, sealed where it is sealed.

    100,000 instances take the server some 200 ms, during which nothing else is decided.
    """
    state = await doors_of(request).engine.settled()
    packed = msgspec.msgpack.encode(Snapshot(state.revision, records_of(state)))
    return Response(packed, media_type="application/octet-stream")
