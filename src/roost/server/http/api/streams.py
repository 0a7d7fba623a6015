"""Streams of server-sent events: kept alive, and ended when the reader's permission ends."""

from collections.abc import AsyncGenerator

from litestar.response import Stream

from roost.model.errors import RoostError
from roost.server.auth.principal import Principal
from roost.server.http.api import sse
from roost.server.http.api.context import ApiRequest, principal_of

EVENT_STREAM = "text/event-stream"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def stream(request: ApiRequest, source: AsyncGenerator[bytes, None]) -> Stream:
    """The answer to a request that follows something."""
    frames = _while_permitted(principal_of(request), sse.kept_alive(_reported(source)))
    return Stream(frames, media_type=EVENT_STREAM, headers=HEADERS)


async def _reported(source: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A stream that cannot go on ends with an event that says so: the reader comes back."""
    try:
        async for frame in source:
            yield frame
    except RoostError as error:
        yield sse.event({"message": error.message}, event="stopping")
    finally:
        await source.aclose()


async def _while_permitted(
    principal: Principal, source: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:  # fmt: skip
    """A stream that ends when its reader would no longer be let in, or with other roles."""
    try:
        async for piece in source:
            if not principal.still():
                yield sse.event({"message": "your token expired or your roles changed; reconnect"}, event="stopping")
                return
            yield piece
    finally:
        await source.aclose()
