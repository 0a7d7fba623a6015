"""Files of runs between the blob store and nodes: inputs of their attempts out, outputs of their attempts in.

A node reads what the inputs of its attempts name, and nothing else. It writes for attempts that it has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import grpc
import msgspec
from google.protobuf.message import Message

from roost.core.orders import run_order
from roost.core.state.state import State, awaits_agents
from roost.model.errors import Conflict, Invalid, NotFound, RoostError, TooMuch
from roost.model.events import RestoreCache, SaveCache
from roost.model.keys import instance_key, split_workload_key, workload_key
from roost.model.limits import CACHE_KEY_BYTES_MAX, TEXT_LENGTH_MAX
from roost.model.protocol import Beat, Hello, Report
from roost.model.records.cache import CacheFound, CacheProblem
from roost.model.records.files import OutputGap, OutputProblem, Outputs
from roost.model.records.instance import Instance
from roost.model.spec.document import cache_in
from roost.model.spec.files import CACHE_RESTORE_MAX, is_cache_key
from roost.model.states import FINISHED
from roost.ports.blobs import (
    CHUNK_BYTES_MAX,
    BlobsUnavailable,
    Stored,
    Upload,
    WrongBytes,
    check_digests,
    check_upload,
)
from roost.server.agents.authentication import AgentAuthenticator, GrpcRefusal, parsed, refusing
from roost.server.agents.validation import check_copy_report
from roost.server.engine.engine import Engine
from roost.server.engine.questions import Questions
from roost.server.files.contents import ContentsCache
from roost.server.files.copying import Copying
from roost.server.files.sets import complete_set
from roost.server.files.store import Files, ProjectFiles, available
from roost.server.files.uploads import LINK_BYTES_MIN, LINK_S, Taken, UploadLink, take_piece
from roost.server.observability import logging
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_copy, unpack_copy_report

CALLS_MAX = 32  # at once: 8 MiB each
MACHINES_MAX = 1_000  # in one question, of 100 bytes each
PIECES_MAX = 10_000  # in one call
SET_HOLD_MS = 600_000  # a set of outputs that is whole, until its report comes
VERIFY_SHARE = 2  # of a lease, for outputs that a report names: its agent is not answered meanwhile
MANIFEST_BEGINS = b'{"entries":['

M = TypeVar("M", bound=Message)
Handler = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]

log = logging.logger("files")


class FileTransfer:
    """The calls about files, with those of copies, and the outputs that reports name."""

    def __init__(self, engine: Engine, files: Files, reading: Questions, copying: Copying) -> None:
        self._engine = engine
        self._files = files
        self._reading = reading
        self.copying = copying
        self._contents = ContentsCache()
        self._restored: dict[tuple[str, int], str] = {}  # (node, token) -> the manifest that it got from a cache
        self._slots = asyncio.Semaphore(CALLS_MAX)

    def handlers(self, door: AgentAuthenticator) -> dict[str, grpc.RpcMethodHandler]:
        calls = {
            "GetFiles": self._handler(door, pb.GetFilesRequest, self.get),
            "MissingFiles": self._handler(door, pb.MissingFilesRequest, self.missing),
            "PutFiles": self._handler(door, pb.PutFilesRequest, self.put),
            "RestoreCache": self._handler(door, pb.RestoreCacheRequest, self.restore_cache),
            "SaveCache": self._handler(door, pb.SaveCacheRequest, self.save_cache),
            "TakeCopies": self._handler(door, pb.TakeCopiesRequest, self.take_copies),
            "ReportCopy": self._handler(door, pb.CopyReport, self.report_copy),
            "LiveMachines": self._handler(door, pb.LiveMachinesRequest, self.live_machines),
        }
        return {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}

    def _handler(
        self, door: AgentAuthenticator, kind: type[M], answer: Callable[[str, M], Awaitable[Message]]
    ) -> Handler:
        async def handle(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                node = (await door.admit(context)).node
                request = parsed(kind, data, f"this is no {kind.DESCRIPTOR.name}")
                async with self._slots:
                    with refusing():
                        return (await answer(node, request)).SerializeToString()
            except ValueError as error:
                await door.refuse(GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, str(error)), context)
            except GrpcRefusal as refusal:
                await door.refuse(refusal, context)

        return handle

    async def get(self, node: str, request: pb.GetFilesRequest) -> pb.GetFilesReply:
        """Pieces in the order of the request, as many as fit. Small ones come together, a large one alone."""
        instance, files = self._attempt(node, request.token)
        wanted = [(item.digest, item.offset) for item in request.wanted]
        digests = _checked([digest for digest, _ in wanted])
        await self._require_inputs(instance, files, digests)
        sizes = await files.sizes(digests)
        for digest, size in zip(digests, sizes, strict=True):
            if size is None:
                raise GrpcRefusal(grpc.StatusCode.NOT_FOUND, f"the blob {digest} of an input is not there")
        links = files.links
        if links is not None and wanted and not request.wanted[0].through_server and (sizes[0] or 0) >= LINK_BYTES_MIN:
            (digest, offset), url = wanted[0], available(await links.download_link(digests[0], LINK_S))
            return pb.GetFilesReply(pieces=[pb.FilePiece(digest=digest, offset=offset, size=sizes[0] or 0, url=url)])
        whole = _fitting(wanted, sizes)
        if whole:
            found = available(await files.blobs.get(digests[:whole]))
            pieces = [
                pb.FilePiece(digest=digest, data=data or b"", size=len(data or b""))
                for digest, data in zip(digests, found, strict=False)
            ]
            return pb.GetFilesReply(pieces=pieces)
        if not wanted:
            return pb.GetFilesReply()
        (digest, offset), size = wanted[0], sizes[0]
        data = available(await files.blobs.read(digest, offset, CHUNK_BYTES_MAX))
        return pb.GetFilesReply(pieces=[pb.FilePiece(digest=digest, offset=offset, data=data or b"", size=size or 0)])

    async def missing(self, node: str, request: pb.MissingFilesRequest) -> pb.MissingFilesReply:
        instance, files = self._attempt(node, request.token)
        digests = _checked(request.digests)
        await files.hold(_owner(instance.token), digests)
        missing = available(await files.blobs.missing(digests))
        if len(digests) == 1 and not missing:
            await self._notice_set(files, digests[0])
        return pb.MissingFilesReply(digests=missing)

    async def put(self, node: str, request: pb.PutFilesRequest) -> pb.PutFilesReply:
        instance, files = self._attempt(node, request.token)
        pieces = list(request.pieces)
        owner = _owner(instance.token)
        _check_pieces(pieces)
        await files.send(owner, [(piece.digest, piece.size) for piece in pieces])
        small = [(piece.digest, piece.data) for piece in pieces if not piece.offset and len(piece.data) == piece.size]
        if len(small) == len(pieces) and await files.blobs.put(small) is None:
            states = [pb.FileState(digest=piece.digest, offset=piece.size) for piece in pieces]
        else:
            states = []
            for piece in pieces:
                upload = Upload(piece.digest, piece.size, owner)
                states.append(_state(piece, await take_piece(files, upload, piece.offset, piece.data)))
        if len(pieces) == 1 and states[0].offset == pieces[0].size:
            await self._notice_set(files, pieces[0].digest)
        return pb.PutFilesReply(states=states)

    async def take_copies(self, node: str, _: pb.TakeCopiesRequest) -> pb.TakeCopiesReply:
        self._require_lead()
        return pb.TakeCopiesReply(copies=[pack_copy(order) for order in self.copying.take(node)])

    async def report_copy(self, node: str, request: pb.CopyReport) -> pb.CopyReported:
        self._require_lead()
        report = unpack_copy_report(request)
        check_copy_report(report)
        await self.copying.reported(node, report)
        return pb.CopyReported()

    async def live_machines(self, node: str, request: pb.LiveMachinesRequest) -> pb.LiveMachinesReply:
        """A server that does not know all workloads yet refuses: the disks of one that it forgets would go."""
        self._require_lead()
        if len(request.machines) > MACHINES_MAX:
            raise GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, f"at most {MACHINES_MAX} machines in one question")
        state = self._engine.state
        if awaits_agents(state):
            raise GrpcRefusal(grpc.StatusCode.UNAVAILABLE, "the server still waits for the agents of its nodes")
        live = [item for item in request.machines if _may_start(state, node, item)]
        return pb.LiveMachinesReply(machines=live)

    async def restore_cache(self, node: str, request: pb.RestoreCacheRequest) -> pb.RestoreCacheReply:
        """Answer with an entry, which is held, and which this attempt may get from then on."""
        instance, files = self._cached(node, request.token, [request.key, *request.prefixes])
        found: CacheFound | None = await self._engine.ask(
            lambda number: RestoreCache(number, node, request.token, request.key, tuple(request.prefixes))
        )
        if found is None:
            return pb.RestoreCacheReply()
        with _final():
            async with complete_set(files, found.files.digest, self._reading, "", SET_HOLD_MS):
                pass  # it stays for a while
        live = self._engine.state.allocated.get(node, {})
        self._restored = {key: digest for key, digest in self._restored.items() if key[0] != node or key[1] in live}
        self._restored[node, instance.token] = found.files.digest
        return pb.RestoreCacheReply(key=found.key, digest=found.files.digest)

    async def save_cache(self, node: str, request: pb.SaveCacheRequest) -> pb.SaveCacheReply:
        """The files of an entry are whole, and held until the commit that names them."""
        _, files = self._cached(node, request.token, [request.key])
        if request.problem:
            problem, detail = CacheProblem(request.problem), " ".join(request.detail.split())[:TEXT_LENGTH_MAX]
            await self._engine.ask(
                lambda number: SaveCache(number, node, request.token, request.key, None, problem, detail)
            )
            return pb.SaveCacheReply(problem=problem)
        (digest,) = _checked([request.digest])
        with _final():
            async with complete_set(files, digest, self._reading) as found:
                refused: CacheProblem | None = await self._engine.ask(
                    lambda number: SaveCache(number, node, request.token, request.key, found)
                )
        return pb.SaveCacheReply(problem=refused or "")

    def _cached(self, node: str, token: int, keys: Sequence[str]) -> tuple[Instance, ProjectFiles]:
        """An attempt that has a cache."""
        instance, files = self._attempt(node, token)
        if cache_in(self._engine.state.spec_of(instance).document) is None:
            raise GrpcRefusal(grpc.StatusCode.PERMISSION_DENIED, f"attempt {token} has no cache")
        if len(keys) > CACHE_RESTORE_MAX + 1 or not all(is_cache_key(key) for key in keys):
            raise ValueError(f"a call has at most {CACHE_RESTORE_MAX + 1} keys of {CACHE_KEY_BYTES_MAX} bytes")
        return instance, files

    async def verified_beat(self, node: str, beat: Beat) -> Beat:
        """A beat whose outputs are in the store, whole and held until its commit. Others become a gap."""
        if not _have_files(beat.reports):
            return beat
        allocated = self._engine.state.allocated.get(node, {})
        projects = {token: _project(instance.workload) for token, instance in allocated.items()}
        reports = tuple([await self._verified(projects.get(report.token, ""), report) for report in beat.reports])
        return msgspec.structs.replace(beat, reports=reports)

    async def verified_hello(self, hello: Hello) -> Hello:
        if not _have_files(report for _, report in hello.runs):
            return hello
        runs = tuple([(run, await self._verified(_project(run.workload), report)) for run, report in hello.runs])
        return msgspec.structs.replace(hello, runs=runs)

    async def _verified(self, project: str, report: Report) -> Report:
        outputs = report.outputs
        if outputs is None or outputs.files is None:
            return report
        problem = "no attempt of this node has this token"
        try:
            async with asyncio.timeout(self._engine.lease_ms / VERIFY_SHARE / 1_000):
                if project:
                    files = self._files.project(project)
                    async with complete_set(files, outputs.files.digest, self._reading, "", SET_HOLD_MS) as found:
                        if found == outputs.files:
                            files.sent.release(project, _owner(report.token))
                            return report
                        problem = f"the manifest has {found.files} files and {found.size} bytes"
        except TimeoutError:
            problem = "they could not be verified in time"
        except RoostError as error:
            problem = error.message
        log.warning("outputs not kept", token=report.token, digest=outputs.files.digest, error=problem)
        gap = OutputGap(OutputProblem.NOT_STORED)
        return msgspec.structs.replace(report, outputs=Outputs(None, (*outputs.gaps, gap), outputs.more_gaps))

    async def _notice_set(self, files: ProjectFiles, digest: str) -> None:
        """Verify a manifest when it is sent: the report that names it is then checked at once."""
        if available(await files.blobs.read(digest, 0, len(MANIFEST_BEGINS))) != MANIFEST_BEGINS:
            return
        try:
            async with complete_set(files, digest, self._reading, "", SET_HOLD_MS):
                pass
        except RoostError:
            pass  # the report that names it will say so

    def _attempt(self, node: str, token: int) -> tuple[Instance, ProjectFiles]:
        self._require_lead()
        instance = self._engine.state.allocated.get(node, {}).get(token)
        if instance is None:
            raise GrpcRefusal(grpc.StatusCode.PERMISSION_DENIED, f"node {node} has no attempt {token}")
        return instance, self._files.project(_project(instance.workload))

    def _require_lead(self) -> None:
        leadership = self._engine.leadership
        if not self._engine.ready or (leadership is not None and not leadership.is_sure()):
            raise GrpcRefusal(grpc.StatusCode.UNAVAILABLE, "this server does not lead")

    async def _require_inputs(self, instance: Instance, files: ProjectFiles, digests: Sequence[str]) -> None:
        manifests = {item.digest for item in run_order(self._engine.state, instance).inputs if item.digest}
        manifests |= self.copying.manifests(instance.token)
        restored = self._restored.get((instance.node, instance.token))
        manifests |= {restored} if restored is not None else set()
        left = set(digests) - manifests
        for manifest in sorted(manifests):
            if left:
                left -= await self._contents.get(files, manifest) or frozenset()
        if left:
            message = f"{min(left)} is not of the inputs of attempt {instance.token}"
            raise GrpcRefusal(grpc.StatusCode.PERMISSION_DENIED, message)


@contextmanager
def _final() -> Iterator[None]:
    """What is wrong with a cache stays so: another try of its node does not help."""
    try:
        yield
    except (Conflict, Invalid, NotFound, TooMuch) as error:
        raise GrpcRefusal(grpc.StatusCode.FAILED_PRECONDITION, error.message) from None


def _fitting(wanted: Sequence[tuple[str, int]], sizes: Sequence[int | None]) -> int:
    """How many of the first ones are wanted whole and fit into one reply together."""
    left = CHUNK_BYTES_MAX
    for position, ((_, offset), size) in enumerate(zip(wanted, sizes, strict=True)):
        left -= size or 0
        if offset or left < 0:
            return position
    return len(wanted)


def _state(piece: pb.FilePiece, outcome: Taken) -> pb.FileState:
    match outcome:
        case int():
            return pb.FileState(digest=piece.digest, offset=outcome)
        case UploadLink():
            return pb.FileState(digest=piece.digest, url=outcome.url)
        case Stored():
            return pb.FileState(digest=piece.digest, offset=piece.size)
        case WrongBytes():
            return pb.FileState(digest=piece.digest, problem="wrong_bytes", message=outcome.reason)
        case BlobsUnavailable():
            return pb.FileState(digest=piece.digest, problem="unavailable", message=outcome.reason)


def _checked(digests: Iterable[str]) -> list[str]:
    found = list(digests)
    check_digests(found)
    return found


def _check_pieces(pieces: Sequence[pb.FilePiece]) -> None:
    if len(pieces) > PIECES_MAX or sum(len(piece.data) for piece in pieces) > CHUNK_BYTES_MAX:
        raise ValueError(f"a call has at most {PIECES_MAX} pieces and {CHUNK_BYTES_MAX} bytes")
    for piece in pieces:
        check_upload(Upload(piece.digest, piece.size))
        if piece.offset < 0:
            raise ValueError(f"an offset is not negative: {piece.offset}")


def _have_files(reports: Iterable[Report]) -> bool:
    return any(report.outputs is not None and report.outputs.files is not None for report in reports)


def _owner(token: int) -> str:
    return f"attempt:{token}"


def _project(workload: str) -> str:
    return split_workload_key(workload)[0]


def _may_start(state: State, node: str, machine: pb.MachineName) -> bool:
    """Whether an attempt of this instance goes on at this node, or may follow there."""
    workload = state.workloads.get(workload_key(*split_workload_key(machine.workload)))
    if workload is None or workload.serial != machine.serial or workload.finished_ms:
        return False
    instance = state.instances.get(instance_key(machine.workload, machine.index))
    if instance is None:
        return machine.index < workload.count
    return instance.state not in FINISHED and (instance.node or instance.home) in ("", node)
