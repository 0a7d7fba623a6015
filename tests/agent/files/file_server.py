"""The server's side of files, in the process of the test: the three calls of the protocol over blobs in memory."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from roost.agent.files.progress import CollectOutputs, FetchInputs
from roost.agent.files.transfers import Found, Transfers
from roost.blobs.memory import MemoryBlobs
from roost.drivers.container.images import ImageFound
from roost.files.manifest import Manifest, encode
from roost.files.scan import scan
from roost.model.records.files import InputFailure, Outputs, RunInput
from roost.model.spec.files import CacheBlock, OutputBlock
from roost.ports.blobs import Stored, Upload, WrongBytes, digest_of
from roost.wire import agent_pb2 as pb

DEADLINE_S = 20


class FileServer:
    """`call` is what an agent calls. `refuse` raises an error for the next calls of a method."""

    def __init__(self, reply_bytes: int = 8 << 20) -> None:
        self.blobs = MemoryBlobs()
        self.calls: Counter[str] = Counter()
        self.bytes_got = 0
        self.sent: Counter[str] = Counter()  # how often each blob was sent to the agent, in whole or in part
        self.links: dict[str, str] = {}  # of blobs that are read and written elsewhere
        self.cache: dict[str, str] = {}  # key -> manifest
        self.saved: list[tuple[str, str, str]] = []  # keys that were saved, or not, with the problem and its detail
        self.is_open = asyncio.Event()  # clear: calls are not answered
        self.is_open.set()
        self._reply_bytes = reply_bytes
        self._refusals: dict[str, list[grpc.StatusCode]] = {}

    def refuse(self, method: str, *codes: grpc.StatusCode) -> None:
        self._refusals.setdefault(method, []).extend(codes)

    async def store(self, folder: Path) -> str:
        """A directory as clients send it; the digest of its manifest."""
        manifest = scan(folder)
        for file in manifest.files():
            await self.keep((folder / file.path).read_bytes())
        return await self.keep(encode(manifest))

    async def keep(self, data: bytes) -> str:
        assert await self.blobs.put([(digest_of(data), data)]) is None
        return digest_of(data)

    async def read(self, digest: str) -> bytes:
        data = await self.blobs.read(digest, 0, 8 << 20)
        assert isinstance(data, bytes)
        return data

    async def manifest(self, outputs: Outputs) -> Manifest:
        import msgspec

        assert outputs.files is not None
        return msgspec.json.decode(await self.read(outputs.files.digest), type=Manifest)

    async def call(self, method: str, data: bytes) -> bytes:
        self.calls[method] += 1
        await self.is_open.wait()
        if self._refusals.get(method):
            raise _error(self._refusals[method].pop(0))
        reply: Any
        match method:
            case "GetFiles":
                reply = await self._get(pb.GetFilesRequest.FromString(data))
            case "RestoreCache":
                asked = pb.RestoreCacheRequest.FromString(data)
                found = next((key for key in (asked.key, *asked.prefixes) if key in self.cache), "")
                reply = pb.RestoreCacheReply(key=found, digest=self.cache.get(found, ""))
            case "SaveCache":
                saved = pb.SaveCacheRequest.FromString(data)
                self.saved.append((saved.key, saved.problem, saved.detail))
                if saved.digest:
                    self.cache.setdefault(saved.key, saved.digest)
                reply = pb.SaveCacheReply()
            case "MissingFiles":
                digests = list(pb.MissingFilesRequest.FromString(data).digests)
                reply = pb.MissingFilesReply(digests=await self.blobs.missing(digests))
            case _:
                pieces = pb.PutFilesRequest.FromString(data).pieces
                reply = pb.PutFilesReply(states=[await self._put(piece) for piece in pieces])
        return bytes(reply.SerializeToString())

    async def _get(self, request: pb.GetFilesRequest) -> pb.GetFilesReply:
        left, pieces = self._reply_bytes, []
        for wanted in request.wanted:
            size = await self.blobs.size(wanted.digest)
            if size is None:
                raise _error(grpc.StatusCode.NOT_FOUND, f"there is no {wanted.digest}")
            piece = pb.FilePiece(digest=wanted.digest, offset=wanted.offset, size=size)
            if wanted.digest in self.links and not wanted.through_server:
                piece.url = self.links[wanted.digest]
            else:
                if pieces and size > left:
                    break
                found = await self.blobs.read(wanted.digest, wanted.offset, left)
                assert isinstance(found, bytes)
                piece.data = found
                left -= len(found)
                self.bytes_got += len(found)
            self.sent[wanted.digest] += 1
            pieces.append(piece)
        return pb.GetFilesReply(pieces=pieces)

    async def _put(self, piece: pb.FilePiece) -> pb.FileState:
        state = pb.FileState(digest=piece.digest)
        if len(piece.data) == piece.size:
            wrong = await self.blobs.put([(piece.digest, piece.data)])
            state.offset, state.problem = (0, "wrong_bytes") if wrong else (piece.size, "")
            return state
        if piece.digest in self.links and piece.offset < piece.size and not piece.data:
            state.url = self.links[piece.digest]
            return state
        upload = Upload(piece.digest, piece.size, "attempt")
        begun = await self.blobs.begin(upload)
        at: Any = piece.size if isinstance(begun, Stored) else begun
        if not isinstance(begun, Stored) and piece.data:
            at = await self.blobs.write(upload, piece.offset, piece.data)
            if at == piece.size:
                at = await self.blobs.finish(upload)
        if isinstance(at, WrongBytes):
            state.problem = "wrong_bytes"
        else:
            state.offset = piece.size if isinstance(at, Stored) else at
        return state


def _error(code: grpc.StatusCode, details: str = "refused by the test") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Node:
    """The transfers of an agent, and the answers that its machine would get."""

    def __init__(self, directory: Path, server: FileServer, cache_bytes: int) -> None:
        self.directory = directory
        self.fetched: dict[int, InputFailure | None] = {}
        self.collected: dict[int, Outputs] = {}
        self._changed = asyncio.Event()
        self.transfers = Transfers(
            str(directory),
            cache_bytes,
            server.call,
            self._fetched,
            self._collected,
            lambda job, effect: ImageFound("", ""),
        )

    def folder(self, token: int = 1) -> Path:
        return self.directory / "work" / str(token)

    def fetch(self, *inputs: RunInput, token: int = 1, cache: CacheBlock | None = None) -> None:
        env = (("BRANCH", "main"),) if cache is not None else ()
        self.transfers.perform(FetchInputs(token, inputs, str(self.folder(token)), cache=cache, env=env))

    async def have(self, *inputs: RunInput, token: int = 1, cache: CacheBlock | None = None) -> str:
        """Fetch, and wait; the problem with its path, status and detail, if there is one."""
        self.fetch(*inputs, token=token, cache=cache)
        await self.until(lambda: token in self.fetched)
        failure = self.fetched.pop(token)
        facts = (failure.problem, failure.path, failure.status, failure.detail) if failure is not None else ()
        return " ".join(str(fact) for fact in facts if fact)

    async def collect(self, *outputs: OutputBlock, token: int = 1, cache: CacheBlock | None = None) -> Outputs:
        self.transfers.perform(CollectOutputs(token, outputs, str(self.folder(token)), cache))
        await self.until(lambda: token in self.collected)
        return self.collected.pop(token)

    async def until(self, is_so: Any) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    def _fetched(self, token: int, failure: InputFailure | None, found: Found | None) -> None:
        self.fetched[token] = failure
        self._changed.set()

    def _collected(self, token: int, outputs: Outputs) -> None:
        self.collected[token] = outputs
        self._changed.set()


@asynccontextmanager
async def node_of(directory: Path, server: FileServer, cache_bytes: int = 64 << 20) -> AsyncIterator[Node]:
    """An agent's transfers; what is in the directory is of the one before it."""
    node = Node(directory, server, cache_bytes)
    running = asyncio.ensure_future(node.transfers.run())
    try:
        yield node
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
