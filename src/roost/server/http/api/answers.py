"""Answers of the REST API that are not just a view in JSON: states of the past, bytes, and streams of events."""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NamedTuple

from litestar import MediaType, Response
from litestar.datastructures import ResponseHeader
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Stream

from roost.model.errors import Invalid, Refused, RoostError
from roost.model.states import LogStream
from roost.ports.blobs import BLOB_BYTES_MAX
from roost.schema.work import SubmittedView
from roost.server.auth.principal import Principal, Redactor
from roost.server.auth.shares import Shares
from roost.server.feed.change_log import CommittedChanges, FeedUpdate
from roost.server.http.api import sse
from roost.server.http.api.context import ApiRequest, dispatcher_of, principal_of
from roost.server.operations.context import AsOf
from roost.server.operations.fleet import servers
from roost.server.operations.parameters import OFFSET_MAX
from roost.server.operations.work import events, files, instances, logs, workloads
from roost.server.operations.work.events import ID_MAX, EventBatch
from roost.server.operations.work.files import BlobPiece
from roost.server.operations.work.logs import LogEvent, LogSlice

STREAMS_MAX = 2_048  # half of all connections
TRANSFERS_MAX = 64  # bodies of up to 8 MiB that are in memory, and blobs that are being read
EVENT_STREAM = "text/event-stream"
EVENT_STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
ZSTD = "application/zstd"
JSON, BYTES, PROMETHEUS = "application/json", "application/octet-stream", "text/plain; version=0.0.4"
REVISION, TIME, GAP = "Roost-Revision", "Roost-At", "Roost-Gap"
RESET = "changes before this revision are no longer available; list again and resume from the new revision"
RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)
LOG_EVENT_ID = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})(?:\.([0-9]{1,18}))?")  # ATTEMPT.OFFSET[.STDERR_OFFSET]
SIZE, OF_ATTEMPT, IS_FINISHED = "Roost-Log-Size", "Roost-Log-Attempt", "Roost-Log-Finished"
MISSING, NEXT = "Roost-Log-Missing", "Roost-Log-Next"
RESULT_ATTEMPT = "Roost-Result-Attempt"


class Answering(NamedTuple):
    """How an operation is answered. `resume`: what a header changes in the arguments."""

    respond: Callable[[ApiRequest, Any], Any]
    returns: Any
    media_type: str | None = None
    headers: Sequence[ResponseHeader] = ()
    responses: dict[int, ResponseSpec] = {}
    resume: Callable[[str | None, dict[str, Any]], None] | None = None
    header: str = "Last-Event-ID"


def _as_of(_: ApiRequest, answer: AsOf[Any]) -> Response[Any]:
    if answer.moment is None:
        return Response(answer.view)
    at = datetime.fromtimestamp(answer.moment.at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    headers = {REVISION: str(answer.moment.revision), TIME: at.replace("+00:00", "Z")}
    if answer.moment.gap:
        headers[GAP] = answer.moment.gap
    return Response(answer.view, headers=headers)


def _log_slice(_: ApiRequest, piece: LogSlice) -> Response[bytes]:
    headers = {
        SIZE: str(piece.size),
        OF_ATTEMPT: str(piece.attempt),
        IS_FINISHED: str(piece.finished).lower(),
        MISSING: str(piece.missing),
        NEXT: str(piece.next),
    }
    return Response(piece.data, media_type=BYTES, headers=headers)


async def _log_frames(source: AsyncGenerator[LogEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(source):
        async for item in source:
            id = f"{item.attempt}.{item.offset}" + (f".{item.stderr_offset}" if item.stderr_offset else "")
            if item.ending is not None:
                yield sse.event(item.ending, event="end")
            elif item.missing is not None:
                yield sse.event(item.missing, event="missing")
            elif item.begun is not None:
                yield sse.event(item.begun, event="attempt") + sse.mark(id)
            else:
                name = "" if item.stream is LogStream.STDOUT else item.stream.value
                yield sse.frame(b64encode(item.data), event=name, id=id) if item.data else sse.mark(id)


def _resume_log(last: str | None, arguments: dict[str, Any]) -> None:
    """An id that did not come from here is ignored."""
    known = LOG_EVENT_ID.fullmatch(last or "")
    if known:
        offset, stderr_offset = (min(int(number or 0), OFFSET_MAX) for number in known.groups()[1:])
        arguments.update(attempt=int(known[1]), offset=offset, stderr_offset=stderr_offset)


async def _event_frames(source: AsyncGenerator[EventBatch, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(source):
        async for batch in source:
            frames = [sse.event(item, event="happened", id=str(item.id)) for item in batch.items]
            yield b"".join(frames) + sse.mark(str(batch.position))


def _resume_events(last: str | None, arguments: dict[str, Any]) -> None:
    if last and not (last.isascii() and last.isdigit() and int(last[:20]) <= ID_MAX):
        raise Invalid("Last-Event-ID", "this is not the id of an event")
    if last:
        arguments["since"] = int(last)


async def change_frames(
    source: AsyncGenerator[FeedUpdate, None], redactor: Redactor
) -> AsyncGenerator[bytes, None]:  # fmt: skip
    """Changes as server-sent events, with the position to resume from after the last one of a commit."""
    async with aclosing(source):
        async for commit, changes, id, reset_at in source:
            if reset_at is not None:
                yield sse.event({"revision": reset_at, "message": RESET}, event="reset", id=id)
                continue
            frames = [_change_frame(commit, at, redactor) for at in changes] if commit is not None else []
            yield b"".join(frames) + (sse.mark(id) if id else b"")


def _change_frame(commit: CommittedChanges, at: int, redactor: Redactor) -> bytes:
    """Encoded once for all readers that see everything."""
    frame = commit.frames.get(at) if redactor.is_open else None
    if frame is None:
        change = commit.changes[at]
        what, view = "gone" if change.value is None else "put", commit.view(at, redactor)
        report = {"revision": commit.revision, "kind": change.kind, "key": change.key, "what": what, "object": view}
        frame = sse.event(report, event="change")
        if redactor.is_open:
            commit.frames[at] = frame
    return frame


def _resume_changes(last: str | None, arguments: dict[str, Any]) -> None:
    arguments["since"] = last or arguments["since"]


def _resume_blob(asked: str | None, arguments: dict[str, Any]) -> None:
    """One range of bytes. Others are ignored, as HTTP allows: the whole blob is the answer."""
    found = RANGE.fullmatch((asked or "").strip())
    if found is None:
        return
    first, last, suffix = found.groups()
    if suffix is not None:
        arguments.update(
            offset=-min(int(suffix), BLOB_BYTES_MAX) if int(suffix) else BLOB_BYTES_MAX, length=BLOB_BYTES_MAX
        )
    elif not last or int(last) >= int(first):
        length = int(last) - int(first) + 1 if last else BLOB_BYTES_MAX
        arguments.update(offset=min(int(first), BLOB_BYTES_MAX), length=min(length, BLOB_BYTES_MAX))


def _blob(media_type: str) -> Callable[[ApiRequest, AsyncGenerator[BlobPiece, None]], Any]:
    async def respond(request: ApiRequest, source: AsyncGenerator[BlobPiece, None]) -> Stream:
        shares: Shares = request.app.state["transfers"]
        shares.take(principal_of(request))  # refused here, before the answer has begun
        shares.give_back(principal_of(request).name)
        first = await anext(source)
        headers = {
            "content-length": str(first.end - first.offset),
            "accept-ranges": "bytes",
            "etag": f'"{request.path_params["digest"]}"',
            "cache-control": "private, immutable, max-age=31536000",
        }
        is_part = RANGE.fullmatch(request.headers.get("range", "").strip()) and first.end - first.offset < first.size
        if is_part:
            headers["content-range"] = f"bytes {first.offset}-{first.end - 1}/{first.size}"
        pieces = _blob_pieces(shares, principal_of(request), first, source)
        return Stream(pieces, status_code=206 if is_part else 200, media_type=media_type, headers=headers)

    return respond


async def _blob_pieces(
    shares: Shares, principal: Principal, first: BlobPiece, source: AsyncGenerator[BlobPiece, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(source):
        with shares.one(principal):
            yield first.data
            async for piece in source:
                if not principal.still():
                    raise Refused("your token expired or your roles changed")
                yield piece.data


def stream(request: ApiRequest, source: AsyncGenerator[bytes, None]) -> Stream:
    principal, watch = principal_of(request), dispatcher_of(request).context.watch
    shares: Shares = request.app.state["streams"]
    shares.take(principal)  # refused here, before the answer has begun
    shares.give_back(principal.name)

    def changed() -> "list[asyncio.Future[int]]":
        return [watch.changed(key) for key in principal.records]

    frames = _frames(shares, principal, sse.kept_alive(source, changed=changed))
    return Stream(frames, media_type=EVENT_STREAM, headers=EVENT_STREAM_HEADERS)


async def _frames(
    shares: Shares, principal: Principal, source: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """A stream, counted while it is open. One that cannot go on ends with an event, so that the reader reconnects:
    several began at once, its source failed, or its reader would no longer be admitted with the same roles."""
    async with aclosing(source):
        try:
            with shares.one(principal):
                async for frame in source:
                    if not principal.still():
                        raise Refused("your token expired or your roles changed; reconnect")
                    yield frame
        except RoostError as error:
            yield sse.event({"message": error.message}, event="stopping")


def _header(name: str, description: str) -> ResponseHeader:
    return ResponseHeader(name=name, documentation_only=True, description=description)


OF_VIEW = Answering(lambda _, view: view, None)
AS_OF = Answering(
    _as_of,
    None,
    headers=(
        _header(REVISION, "With `at`: the commit of the answer."),
        _header(TIME, "With `at`: the time of the answer."),
        _header(GAP, "With `at`: why it may differ from the requested time."),
    ),
)
ANSWERS: dict[Callable[..., Any], Answering] = {
    workloads.submit: Answering(
        lambda _, view: Response(view, status_code=201 if view.result == "created" else 200),
        Response[SubmittedView],
        responses={200: ResponseSpec(SubmittedView, generate_examples=False)},
    ),
    servers.metrics: Answering(lambda _, page: Response(page, media_type=PROMETHEUS), Response[bytes], PROMETHEUS),
    servers.backup: Answering(lambda _, data: Response(data, media_type=BYTES), Response[bytes], BYTES),
    instances.get_result: Answering(
        lambda _, found: Response(found.data, media_type=JSON, headers={RESULT_ATTEMPT: str(found.attempt)}),
        Response[bytes],
        JSON,
        (_header(RESULT_ATTEMPT, "The attempt that wrote it."),),
    ),
    files.get_files: Answering(_blob(JSON), Stream, JSON),
    files.read_blob: Answering(
        _blob(BYTES),
        Stream,
        BYTES,
        responses={206: ResponseSpec(bytes, generate_examples=False, media_type=MediaType.TEXT)},
        resume=_resume_blob,
        header="Range",
    ),
    files.read_contents: Answering(lambda _, data: Response(data, media_type=ZSTD), Response[bytes], ZSTD),
    logs.read_log: Answering(
        _log_slice,
        Response[bytes],
        BYTES,
        (
            _header(SIZE, "Bytes there are so far."),
            _header(OF_ATTEMPT, "The attempt whose log this is."),
            _header(IS_FINISHED, "true: no more will come."),
            _header(NEXT, "The offset after the bytes of this answer."),
        ),
    ),
    logs.follow_log: Answering(
        lambda request, source: stream(request, _log_frames(source)), Stream, EVENT_STREAM, resume=_resume_log
    ),
    events.follow_events: Answering(
        lambda request, source: stream(request, _event_frames(source)), Stream, EVENT_STREAM, resume=_resume_events
    ),
    events.changes: Answering(
        lambda request, source: stream(request, change_frames(source, Redactor(principal_of(request).access))),
        Stream,
        EVENT_STREAM,
        resume=_resume_changes,
    ),
}
