"""The server's files as a thread of the agent sees them: get, ask what is missing, put. Trouble is waited out."""

import itertools
import os
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from roost.agent.files.job import TransferJob
from roost.files import web
from roost.model.protocol import CopyReport
from roost.ports.blobs import CHUNK_BYTES_MAX
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_copy_report

M = TypeVar("M", bound=Message)
Call = Callable[[str, bytes], Coroutine[Any, Any, bytes]]

PAUSE_S = 0.2  # before the second try; then twice as long each time
PAUSE_S_MAX = 10.0
REFUSALS_MAX = 5  # a server that has just become the leader may not know the attempt yet
URL_TRIES_MAX = 4  # three seconds: a node that does not reach S3 goes on through the server
QUESTION_MAX = 1_000  # digests in one call: 70 KB
PUT_BYTES_MAX = CHUNK_BYTES_MAX
WHOLE_BYTES_MAX = 1 << 20  # larger contents go in pieces, each in a call of its own

# What another try does not change. Everything else may pass: no server, another leader, a store that does not answer.
REFUSED = {
    grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OUT_OF_RANGE,
}  # fmt: skip


class TransferRefused(Exception):
    """The server will not do it, also not later; the message says why. `is_missing`: it does not have the bytes."""

    def __init__(self, message: str, *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class Content(NamedTuple):
    """Bytes to put. `read` gives at most so many bytes from an offset on."""

    digest: str
    size: int
    read: Callable[[int, int], bytes]


class FileClient:
    """Files of one attempt. All methods block, and raise TransferStopped when the job is stopped."""

    def __init__(self, job: TransferJob, token: int, call: Call) -> None:
        self._job = job
        self._token = token
        self._call = call
        self._through_server = False  # a URL was of no use: the node may not reach it

    def get(self, digest: str, bytes_max: int) -> bytes:
        """A blob of unknown size, whole. Raises TransferRefused."""
        data = b""
        while True:
            (piece,) = self._get([self._wanted(digest, len(data))])[:1]
            if piece.size > bytes_max:
                raise TransferRefused(f"{digest} has {piece.size} bytes, at most {bytes_max} were expected")
            data += b"".join(self._of_url(piece)) if piece.url else piece.data
            if len(data) >= piece.size:
                return data

    def get_small(self, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Contents that are small and together fit into a reply. Raises TransferRefused."""
        left = list(digests)
        while left:
            pieces = self._get([self._wanted(digest) for digest in left])
            for digest, piece in zip(list(left), pieces, strict=False):
                if piece.digest != digest:
                    raise TransferRefused(f"the server sent {piece.digest} instead of {digest}")
                data = b"".join(self._of_url(piece)) if piece.url else piece.data
                if len(data) < piece.size:
                    data = b"".join(self.get_large(digest, piece.size))
                yield digest, data
                left.remove(digest)

    def get_large(self, digest: str, size: int) -> Iterator[bytes]:
        """A content in pieces; the next is on its way while one is used. Raises TransferRefused."""

        def piece_at(offset: int) -> pb.FilePiece:
            return self._get([self._wanted(digest, offset)])[0]

        with ThreadPoolExecutor(1, "prefetch") as pool:
            at, coming = 0, pool.submit(piece_at, 0)
            while at < size:
                piece, before = coming.result(), at
                if not piece.url and before + len(piece.data) < size:
                    coming = pool.submit(piece_at, before + len(piece.data))
                for chunk in self._of_url(piece) if piece.url else [piece.data]:
                    at += len(chunk)
                    yield chunk
                if at == before and not piece.url:
                    raise TransferRefused(f"{digest} ends at {at} of {size} bytes")
                if piece.url and at < size:
                    coming = pool.submit(piece_at, at)

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Those that the server lacks. Raises TransferRefused."""
        found: list[str] = []
        for start in range(0, len(digests), QUESTION_MAX):
            question = pb.MissingFilesRequest(token=self._token, digests=digests[start : start + QUESTION_MAX])
            found += self._ask("MissingFiles", question, pb.MissingFilesReply).digests
        return found

    def put(self, contents: Sequence[Content]) -> list[str]:
        """Store contents; returns those whose bytes were others than announced. Raises TransferRefused."""
        wrong: list[str] = []
        batch: list[tuple[Content, bytes]] = []
        size = 0
        for content in contents:
            if content.size > WHOLE_BYTES_MAX:
                wrong += [] if self._put_large(content) else [content.digest]
                continue
            if batch and (size + content.size > PUT_BYTES_MAX or len(batch) >= QUESTION_MAX):
                wrong += self._put_batch(batch)
                batch, size = [], 0
            batch.append((content, content.read(0, content.size)))
            size += content.size
        return wrong + (self._put_batch(batch) if batch else [])

    def report_copy(self, report: CopyReport) -> None:
        """Tell the outcome of a copy. Raises TransferRefused."""
        self._ask("ReportCopy", pack_copy_report(report), pb.CopyReported)

    def restore_cache(self, key: str, prefixes: Sequence[str]) -> tuple[str, str]:
        """The key and the manifest of the entry that the run gets; both empty: none. Raises TransferRefused."""
        question = pb.RestoreCacheRequest(token=self._token, key=key, prefixes=prefixes)
        reply = self._ask("RestoreCache", question, pb.RestoreCacheReply)
        return reply.key, reply.digest

    def save_cache(self, key: str, digest: str = "", problem: str | None = None, detail: str = "") -> None:
        """Name a set of files that was put, or say why there is none. Raises TransferRefused."""
        request = pb.SaveCacheRequest(token=self._token, key=key, digest=digest, problem=problem or "", detail=detail)
        self._ask("SaveCache", request, pb.SaveCacheReply)

    def _put_batch(self, batch: list[tuple[Content, bytes]]) -> list[str]:
        left, wrong = {content.digest: (content, data) for content, data in batch}, []
        pauses = _pauses()
        while left:
            pieces = [pb.FilePiece(digest=item.digest, data=data, size=item.size) for item, data in left.values()]
            for state in self._put(pieces):
                content, data = left.get(state.digest, (None, b""))
                if content is None:
                    continue
                if state.problem == "wrong_bytes":
                    wrong.append(state.digest)
                elif state.url:
                    self._put_url(state.url, content)
                    continue
                elif state.problem or state.offset < content.size:
                    continue
                del left[state.digest]
            if left:
                self._job.pause(next(pauses))
        return wrong

    def _put_large(self, content: Content) -> bool:
        """Ask where to go on, send from there, until the server has it. False: the bytes were wrong."""
        at, data = 0, b""
        pauses = _pauses()
        while True:
            state = self._put([pb.FilePiece(digest=content.digest, offset=at, data=data, size=content.size)])[0]
            if state.problem == "wrong_bytes":
                return False
            if state.url:
                self._put_url(state.url, content)
                at, data = content.size, b""
            elif state.problem:
                self._job.pause(next(pauses))
            elif state.offset >= content.size:
                return True
            else:
                pauses = _pauses()
                at = state.offset
                data = content.read(at, min(PUT_BYTES_MAX, content.size - at))
                if not data:
                    return False  # the file became shorter

    def _put_url(self, url: str, content: Content) -> None:
        """Send it; the server is asked afterwards, and takes the bytes itself if it did not work."""
        for pause in itertools.islice(_pauses(), URL_TRIES_MAX):
            try:
                return web.put(url, content.size, content.read, self._job.check)
            except web.WebTrouble as trouble:
                if trouble.is_final:
                    return
                self._job.pause(pause)

    def _of_url(self, piece: pb.FilePiece) -> Iterator[bytes]:
        """The rest of a blob from where it is. What breaks off goes on where it was.

        It may end early, as a URL that is no longer valid: the server is asked for the rest.
        """
        at = piece.offset

        def read() -> Iterator[bytes]:
            nonlocal at
            for chunk in web.get(piece.url, at, piece.size, self._job.check):
                at += len(chunk)
                yield chunk

        for pause in itertools.islice(_pauses(), URL_TRIES_MAX):
            try:
                yield from read()
                break
            except web.WebTrouble as trouble:
                if trouble.is_final:
                    break
                self._job.pause(pause)
        self._through_server |= at == piece.offset < piece.size

    def _wanted(self, digest: str, offset: int = 0) -> pb.Wanted:
        return pb.Wanted(digest=digest, offset=offset, through_server=self._through_server)

    def _get(self, wanted: list[pb.Wanted]) -> Sequence[pb.FilePiece]:
        reply = self._ask("GetFiles", pb.GetFilesRequest(token=self._token, wanted=wanted), pb.GetFilesReply)
        if not reply.pieces:
            raise TransferRefused(f"the server has not sent {wanted[0].digest}")
        return reply.pieces

    def _put(self, pieces: list[pb.FilePiece]) -> Sequence[pb.FileState]:
        return self._ask("PutFiles", pb.PutFilesRequest(token=self._token, pieces=pieces), pb.PutFilesReply).states

    def _ask(self, method: str, request: Message, reply: type[M]) -> M:
        data = request.SerializeToString()
        refusals, pauses = 0, _pauses()
        while True:
            try:
                return reply.FromString(self._job.result_of(lambda: self._call(method, data)))
            except grpc.aio.AioRpcError as error:
                refusals += error.code() in REFUSED
                if refusals >= REFUSALS_MAX or error.code() is grpc.StatusCode.NOT_FOUND:
                    is_missing = error.code() is grpc.StatusCode.NOT_FOUND
                    raise TransferRefused(error.details() or error.code().name, is_missing=is_missing) from None
            except (grpc.aio.UsageError, OSError):
                pass  # there is no server now
            self._job.pause(next(pauses))


def _pauses() -> Iterator[float]:
    pause = PAUSE_S
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, PAUSE_S_MAX)


def reader_of(descriptor: int) -> Callable[[int, int], bytes]:
    return lambda offset, limit: os.pread(descriptor, limit, offset)
