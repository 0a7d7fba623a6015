"""Server-sent events: how a stream of them is written and kept alive."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import msgspec

from roost.server.waiting import cancel, cancel_futures

PULSE_S = 15.0  # proxies close streams that are silent for a minute, and a dead peer shows only in a write
PULSE = b": still here\n\n"


def event(data: Any, *, event: str = "", id: str = "") -> bytes:
    return frame(msgspec.json.encode(data), event=event, id=id)


def frame(data: bytes, *, event: str = "", id: str = "") -> bytes:
    """One event; the data must be one line."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return b"%sdata: %s\n\n" % (head.encode(), data)


def mark(id: str) -> bytes:
    """No event, but the position to resume from."""
    return f"id: {id}\n\n".encode()


async def kept_alive(
    source: AsyncGenerator[bytes, None],
    pulse_s: float = PULSE_S,
    changed: "Callable[[], Iterable[asyncio.Future[int]]]" = tuple,
) -> AsyncGenerator[bytes, None]:
    """The same stream with a comment whenever it is silent for long, or one of the `changed` futures is done."""
    following: asyncio.Task[bytes | None] | None = None
    changes = list(changed())
    try:
        while True:
            following = following or asyncio.ensure_future(anext(source, None))
            waited: set[asyncio.Future[Any]] = {following, *changes}
            await asyncio.wait(waited, timeout=pulse_s, return_when=asyncio.FIRST_COMPLETED)
            if any(change.done() for change in changes):
                cancel_futures(changes)
                changes = list(changed())  # before the reader looks: what comes meanwhile is not missed
            if not following.done():
                yield PULSE
                continue
            data, following = following.result(), None
            if data is None:
                return
            yield data
    finally:
        cancel_futures(changes)
        if following is not None:
            await cancel(following)
        await source.aclose()
