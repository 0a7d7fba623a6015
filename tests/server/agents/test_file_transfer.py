"""Files between server and nodes, over gRPC: only inputs of a node's own attempts, and outputs that are true."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message

from roost.files.manifest import FileEntry, FolderEntry, Manifest, encode
from roost.model.keys import workload_key
from roost.model.protocol import Run
from roost.model.records.files import FileSet, OutputGap, OutputProblem, Outputs
from roost.ports.blobs import CHUNK_BYTES_MAX, digest_of
from roost.server.agents.gateway import SERVICE
from roost.wire import agent_pb2 as pb
from tests.server.gateway_server import GatewayServer, Played, ended, gateway_server, played, runs_of

M = TypeVar("M", bound=Message)

LARGE = bytes(range(256)) * (40 << 10)  # 10 MiB
SMALL = [b"one", b"two", b""]
FOREIGN = b"of another set"
NOT_STORED = OutputGap(OutputProblem.NOT_STORED)


def manifest_of(*contents: bytes) -> bytes:
    entries = [FileEntry(f"f{at}", 0o644, len(data), digest_of(data)) for at, data in enumerate(contents)]
    return encode(Manifest((FolderEntry("a", 0o755), *entries)))


INPUT = manifest_of(*SMALL, LARGE)
OUTPUT = manifest_of(b"one", b"made")
MADE = FileSet(digest_of(OUTPUT), 2, 7)


async def store(made: GatewayServer, *contents: bytes, project: str = "default") -> None:
    blobs = made.files.root.project(project)
    for data in contents:
        await blobs.put([(digest_of(data), data)]) if len(data) < CHUNK_BYTES_MAX else await store_large(blobs, data)


async def store_large(blobs: Any, data: bytes) -> None:
    blobs._blobs[digest_of(data)] = (data, 0)  # more than a batch may have


async def call(agent: Played, method: str, request: Message, reply: type[M]) -> M:
    data = await agent.channel.unary_unary(f"/{SERVICE}/{method}")(request.SerializeToString())
    return reply.FromString(data)


async def get(agent: Played, token: int, *wanted: tuple[str, int]) -> list[tuple[str, int, bytes, int]]:
    request = pb.GetFilesRequest(token=token, wanted=[pb.Wanted(digest=digest, offset=at) for digest, at in wanted])
    reply = await call(agent, "GetFiles", request, pb.GetFilesReply)
    return [(piece.digest, piece.offset, piece.data, piece.size) for piece in reply.pieces]


async def put(agent: Played, token: int, *pieces: pb.FilePiece) -> list[tuple[int, str]]:
    reply = await call(agent, "PutFiles", pb.PutFilesRequest(token=token, pieces=pieces), pb.PutFilesReply)
    return [(state.offset, state.problem) for state in reply.states]


async def missing(agent: Played, token: int, *digests: str) -> list[str]:
    request = pb.MissingFilesRequest(token=token, digests=digests)
    return list((await call(agent, "MissingFiles", request, pb.MissingFilesReply)).digests)


def whole(data: bytes) -> pb.FilePiece:
    return pb.FilePiece(digest=digest_of(data), data=data, size=len(data))


async def refusal(work: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await work
    return refused.value.code()


@asynccontextmanager
async def running(**fields: Any) -> AsyncIterator[tuple[GatewayServer, Played, Run]]:
    """A server with files, and an agent with a run that has them as inputs."""
    async with gateway_server(lease_ms=60_000) as made, played(made.port) as agent:
        await store(made, INPUT, LARGE, FOREIGN, *SMALL)
        await agent.hello()
        await made.submit(**{"inputs": [{"from": digest_of(INPUT)}], "outputs": ["**"], **fields})
        (run,) = runs_of(await agent.orders())
        yield made, agent, run


async def test_a_node_reads_the_manifest_and_the_contents_of_its_inputs() -> None:
    async with running() as (_, agent, run):
        assert await get(agent, run.token, (digest_of(INPUT), 0)) == [(digest_of(INPUT), 0, INPUT, len(INPUT))]
        small = [(digest_of(data), 0) for data in SMALL]
        assert await get(agent, run.token, *small) == [(digest_of(data), 0, data, len(data)) for data in SMALL]
        pieces = await get(agent, run.token, small[0], (digest_of(LARGE), 0), small[1])
        assert [piece[0] for piece in pieces] == [digest_of(b"one")], "the reply ends before what does not fit"
        ((_, _, first, size),) = await get(agent, run.token, (digest_of(LARGE), 0), small[0])
        assert (len(first), size) == (CHUNK_BYTES_MAX, len(LARGE))
        ((_, offset, rest, _),) = await get(agent, run.token, (digest_of(LARGE), len(first)))
        assert (offset, first + rest) == (CHUNK_BYTES_MAX, LARGE)


async def test_a_node_reads_nothing_else_and_nothing_for_attempts_of_others() -> None:
    async with running() as (made, agent, run):
        denied = grpc.StatusCode.PERMISSION_DENIED
        assert await refusal(get(agent, run.token, (digest_of(FOREIGN), 0))) is denied
        assert await refusal(get(agent, run.token, (digest_of(b"one"), 0), (digest_of(FOREIGN), 0))) is denied
        assert await refusal(get(agent, run.token + 1, (digest_of(INPUT), 0))) is denied
        async with played(made.port, "n2") as other:
            await other.hello()
            assert await refusal(get(other, run.token, (digest_of(INPUT), 0))) is denied
            assert await refusal(missing(other, run.token, digest_of(INPUT))) is denied
            assert await refusal(put(other, run.token, whole(b"x"))) is denied
        await made.cancel("default/job")
        await agent.beat(ended(run))
        await made.until(lambda: not made.engine.state.allocated["n1"])
        assert await refusal(get(agent, run.token, (digest_of(INPUT), 0))) is denied, "the attempt has ended"


async def test_an_input_whose_blob_is_gone_is_not_found() -> None:
    async with running() as (made, agent, run):
        await made.files.root.project("default").delete(digest_of(b"two"))
        assert await refusal(get(agent, run.token, (digest_of(b"two"), 0))) is grpc.StatusCode.NOT_FOUND


async def test_what_makes_no_sense_is_an_invalid_argument() -> None:
    async with running() as (_, agent, run):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        assert await refusal(get(agent, run.token, ("x", 0))) is invalid
        assert await refusal(get(agent, run.token, (digest_of(LARGE), -1))) is invalid
        assert await refusal(missing(agent, run.token, "x")) is invalid
        assert await refusal(put(agent, run.token, pb.FilePiece(digest="x", size=1))) is invalid
        assert await refusal(put(agent, run.token, pb.FilePiece(digest=digest_of(b"x"), size=-1))) is invalid
        assert await refusal(put(agent, run.token, pb.FilePiece(digest=digest_of(b"x"), offset=-1))) is invalid
        large = bytes(CHUNK_BYTES_MAX)
        assert await refusal(put(agent, run.token, whole(large), whole(b"x"))) is invalid


async def test_outputs_are_put_whole_and_in_pieces_and_go_on() -> None:
    async with running() as (made, agent, run):
        assert await missing(agent, run.token, digest_of(b"one"), digest_of(b"made")) == [digest_of(b"made")]
        assert await put(agent, run.token, whole(b"made"), whole(b"more")) == [(4, ""), (4, "")]
        assert await put(agent, run.token, whole(b"a"), pb.FilePiece(digest=digest_of(b"b"), data=b"x", size=1)) == [
            (1, ""),
            (0, "wrong_bytes"),
        ]
        new = LARGE[::-1]
        half = CHUNK_BYTES_MAX // 2
        piece = pb.FilePiece(digest=digest_of(new), data=new[:half], size=len(new))
        assert await put(agent, run.token, piece) == [(half, "")]
        assert await put(agent, run.token, pb.FilePiece(digest=digest_of(new), size=len(new))) == [(half, "")]
        piece = pb.FilePiece(digest=digest_of(new), offset=half, data=new[half:], size=len(new))
        assert await put(agent, run.token, piece) == [(len(new), "")]
        found = await missing(agent, run.token, *map(digest_of, (b"made", b"more", b"a", b"b", new)))
        assert found == [digest_of(b"b")]
        assert made.files.project("default").garbage.held_count == 6


async def outputs_of(made: GatewayServer, agent: Played, run: Run, outputs: Outputs) -> Outputs:
    await agent.beat(ended(run, outputs=outputs))
    instance = await made.until(lambda: made.instance() if made.instance().outputs else None)
    found = instance.outputs
    assert isinstance(found, Outputs)
    return found


async def test_outputs_that_were_sent_are_kept_and_held() -> None:
    async with running() as (made, agent, run):
        assert await put(agent, run.token, whole(b"made")) == [(4, "")]
        assert await put(agent, run.token, whole(OUTPUT)) == [(len(OUTPUT), "")]
        assert digest_of(OUTPUT) in made.files.project("default").held_sets(), "it is verified before the report"
        assert await outputs_of(made, agent, run, Outputs(MADE)) == Outputs(MADE)
        assert digest_of(OUTPUT) in made.files.project("default").held_sets()


@pytest.mark.parametrize(
    ("stored", "reported"),
    [
        ((OUTPUT,), MADE),
        ((b"made",), MADE),
        ((OUTPUT, b"made"), FileSet(MADE.digest, 2, 8)),
        ((OUTPUT, b"made"), FileSet(MADE.digest, 1, 7)),
        ((OUTPUT, b"made"), FileSet(digest_of(b"made"), 2, 7)),
    ],
    ids=["content missing", "manifest missing", "other size", "other count", "no manifest"],
)
async def test_outputs_that_are_not_true_become_a_gap(stored: tuple[bytes, ...], reported: FileSet) -> None:
    async with running() as (made, agent, run):
        await store(made, *stored)
        gap = OutputGap(OutputProblem.MISSING, "*.log")
        assert await outputs_of(made, agent, run, Outputs(reported, (gap,))) == Outputs(None, (gap, NOT_STORED))


async def test_outputs_of_a_hello_are_verified() -> None:
    async with running() as (made, agent, run):
        await agent.close()
        async with played(made.port) as again:
            await again.hello(runs=[(run, ended(run, outputs=Outputs(MADE)))])
            instance = await made.until(lambda: made.instance() if made.instance().outputs else None)
            assert instance.outputs == Outputs(None, (NOT_STORED,))


async def test_outputs_of_other_projects_cannot_be_claimed() -> None:
    async with running() as (made, agent, run):
        await store(made, OUTPUT, b"one", b"made", project="elsewhere")
        assert await outputs_of(made, agent, run, Outputs(MADE)) == Outputs(None, (NOT_STORED,))


# --- caches -----------------------------------------------------------------------------------------------------------

CACHED: dict[str, Any] = {"cache": {"key": "k", "paths": ["x"]}}


async def restored(agent: Played, token: int, key: str, *prefixes: str) -> tuple[str, str]:
    request = pb.RestoreCacheRequest(token=token, key=key, prefixes=prefixes)
    reply = await call(agent, "RestoreCache", request, pb.RestoreCacheReply)
    return reply.key, reply.digest


async def saved(agent: Played, token: int, key: str, digest: str = "", problem: str = "") -> str:
    request = pb.SaveCacheRequest(token=token, key=key, digest=digest, problem=problem, detail="why\nnot")
    return (await call(agent, "SaveCache", request, pb.SaveCacheReply)).problem


async def test_a_cache_is_saved_whole_and_read_by_the_attempt_that_asked_for_it() -> None:
    async with running(**CACHED) as (made, agent, run):
        digest = digest_of(OUTPUT)
        assert await restored(agent, run.token, "k") == ("", "")
        final = grpc.StatusCode.FAILED_PRECONDITION
        assert await refusal(saved(agent, run.token, "k", digest)) is final
        assert await put(agent, run.token, whole(OUTPUT)) == [(len(OUTPUT), "")]
        assert await refusal(saved(agent, run.token, "k", digest)) is final, "contents are missing"
        assert made.engine.state.caches == {}
        assert await put(agent, run.token, whole(b"made")) == [(4, "")]
        assert await saved(agent, run.token, "k", digest) == ""
        assert made.engine.state.caches["default"]["k"].files == MADE
        assert await refusal(get(agent, run.token, (digest, 0))) is grpc.StatusCode.PERMISSION_DENIED
        assert await restored(agent, run.token, "no", "k") == ("k", digest)
        assert await get(agent, run.token, (digest_of(b"made"), 0)) == [(digest_of(b"made"), 0, b"made", 4)]
        assert await saved(agent, run.token, "k", problem="not_restored") == "not_restored"


async def test_a_cache_is_of_runs_that_have_one_on_their_node() -> None:
    async with running(**CACHED) as (made, agent, run):
        denied, invalid = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT
        async with played(made.port, "n2") as other:
            await other.hello()
            assert await refusal(restored(other, run.token, "k")) is denied
            assert await refusal(saved(other, run.token, "k", digest_of(OUTPUT))) is denied
        assert await refusal(restored(agent, run.token, "k", *["x"] * 11)) is invalid
        assert await refusal(restored(agent, run.token, "k" * 251)) is invalid
        assert await refusal(saved(agent, run.token, "a\nb", digest_of(OUTPUT))) is invalid
        assert await refusal(saved(agent, run.token, "k", "x")) is invalid
        assert await refusal(saved(agent, run.token, "k", problem="lazy")) is invalid
    async with running() as (_, agent, run):
        assert await refusal(restored(agent, run.token, "k")) is denied


async def test_a_node_learns_which_of_its_machines_may_start_again() -> None:
    async with running(inputs=[], outputs=[]) as (made, agent, run):
        serial = made.engine.state.workloads[workload_key("default", "job")].serial

        async def live(*names: tuple[str, int, int], of: Played = agent) -> list[tuple[str, int, int]]:
            machines = [pb.MachineName(workload=name, serial=number, index=index) for name, number, index in names]
            request = pb.LiveMachinesRequest(machines=machines)
            reply = await call(of, "LiveMachines", request, pb.LiveMachinesReply)
            return [(item.workload, item.serial, item.index) for item in reply.machines]

        mine, others = ("default/job", serial, 0), [("default/job", serial + 1, 0), ("default/job", serial, 1)]
        assert await live(mine, *others, ("default/gone", 1, 0), ("", -1, -1)) == [mine]
        assert await refusal(live(*[mine] * 1_001)) is grpc.StatusCode.INVALID_ARGUMENT
        await agent.beat(ended(run))
        await made.until(lambda: made.instance().state == "succeeded")
        assert await live(mine) == []
