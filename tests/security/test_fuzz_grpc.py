"""The agents' port under nonsense: whatever nodes, servers and strangers say, nothing breaks and work goes on.

Words of the right shape with absurd values, bytes without any, in every order; then a decent agent comes and is
served.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roost.model.spec.document import encode_document, read_document
from roost.wire import agent_pb2 as pb
from roost.wire import servers_pb2 as servers
from tests.certified import channel_to, node_bundle
from tests.security.secured_server import (
    AGENTS,
    GOOD_ENDS,
    SERVERS,
    SecuredServer,
    asked,
    secured_server,
    server_bundle,
    spoken,
)
from tests.server.gateway_server import played

NUMBERS = count()
SEARCH = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
NODES = ("n1", "n2", "n3")

numbers = st.sampled_from([0, 1, -1, 2, 77, 1 << 31, 1 << 53, 1 << 62, (1 << 63) - 1, -(1 << 63)]) | st.integers(
    -(1 << 63), (1 << 63) - 1
)
small = st.integers(-(1 << 31), (1 << 31) - 1) | st.sampled_from([0, 1, 8080, -1])
texts = st.sampled_from(
    ["", "n1", "default", "default/job", "..", "../../etc/passwd", "a/b/c", "\x00", "x" * 100_000, "n\u0131", "\u202e",
     "\r\n"]
) | st.text(max_size=20)  # fmt: skip
DOCUMENTS = [
    encode_document(read_document({"name": "job", "command": ["true"], **more}))
    for more in (
        {}, {"count": 5}, {"kind": "service", "count": 2}, {"fenced": False}, {"resources": {"gpu": 1}},
        {"ports": {"http": 0}}, {"env": {"X": {"secret": "db"}}},
    )
]  # fmt: skip
documents = st.sampled_from(DOCUMENTS) | st.binary(max_size=50) | st.just(b"\x91" * 5_000 + b"\xc0")
states = st.sampled_from(["starting", "running", "ended"])
causes = st.sampled_from(["", "exited", "timed_out", "stopped", "lease", "error"])
tokens = st.integers(1, 6)

wild_reports = st.builds(
    pb.Report, token=numbers, state=states | texts, started_ago_ms=numbers, ended_ago_ms=numbers, cause=causes | texts,
    code=small, signal=small, step=small, error=texts, log_size=numbers, stderr_size=numbers,
    usage=st.builds(pb.RunUsage, cpu_ms=numbers, memory_max=numbers, io_read=numbers, io_written=numbers),
)  # fmt: skip
# What passes the door: the core has to take all of it.
fair_reports = st.builds(
    pb.Report, token=tokens, state=states, started_ago_ms=st.integers(0, 10_000), ended_ago_ms=st.integers(0, 10_000),
    cause=causes, code=st.integers(0, 255), signal=st.integers(0, 64), step=st.integers(0, 3),
    log_size=st.integers(0, 1 << 40), stderr_size=st.none() | st.integers(0, 1 << 40),
    usage=st.none() | st.builds(pb.RunUsage, cpu_ms=st.integers(0, 1 << 40), memory_max=st.integers(0, 1 << 53)),
)  # fmt: skip
wild_runs = st.builds(
    pb.Run, token=numbers, workload=texts, index=numbers, attempt=numbers, document=documents, timeout_ms=numbers,
    grace_ms=numbers, submitted_ms=numbers, serial=numbers, devices=st.lists(small, max_size=3),
    ports=st.lists(small, max_size=3), after=numbers,
)  # fmt: skip
fair_runs = st.builds(
    pb.Run, token=tokens, workload=st.just("default/job"), index=st.integers(0, 4), attempt=st.integers(1, 3),
    document=st.sampled_from(DOCUMENTS), timeout_ms=numbers, grace_ms=numbers, leased=st.booleans(),
    submitted_ms=st.integers(0, 1 << 53), serial=st.integers(0, 3), devices=st.lists(st.integers(0, 3), max_size=3),
    ports=st.lists(st.integers(1, 65_535), max_size=1), after=st.integers(0, 6) | numbers,
)  # fmt: skip
facts = st.builds(
    pb.Facts, resources=st.dictionaries(texts | st.sampled_from(["cpu", "memory", "gpu"]), numbers, max_size=3),
    labels=st.dictionaries(texts, texts, max_size=2), zone=texts, pool=texts | st.just("default"),
    drivers=st.lists(texts, max_size=2), taints=st.lists(texts, max_size=2),
)  # fmt: skip
fair_facts = st.builds(
    pb.Facts, resources=st.fixed_dictionaries({"cpu": st.integers(0, 8_000), "memory": st.integers(0, 1 << 30)}),
    pool=st.just("default"),
)  # fmt: skip
usages = st.builds(pb.Usage, cpu_milli=numbers, memory=numbers, disk=numbers)
wild_hellos = st.builds(
    pb.Hello, node=st.sampled_from(NODES) | texts, identity=texts, facts=facts | fair_facts, sent_ms=numbers,
    runs=st.lists(st.builds(pb.Held, run=wild_runs, report=wild_reports), max_size=2),
)  # fmt: skip
wild_beats = st.builds(
    pb.Beat, session=numbers, sequence=numbers, sent_ms=numbers, generation=numbers,
    reports=st.lists(wild_reports, max_size=3), usage=usages, lacking=st.booleans(), leaving=st.booleans(),
)  # fmt: skip
wild_frames = st.one_of(
    st.builds(pb.AgentFrame, hello=wild_hellos), st.builds(pb.AgentFrame, beat=wild_beats), st.just(pb.AgentFrame())
).map(lambda frame: frame.SerializeToString())
cut = st.tuples(wild_frames, st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]])
outcome = st.lists(st.one_of(wild_frames, cut, st.binary(max_size=100)), max_size=4)
logs = st.sampled_from(
    ["default/job/1/0.1", "default/job/\uff11/0.1", "default/job/01/0.1", "../../x", "a/b/1/../0.1", "a/b/1/0.1/", ""]
)
chunks = st.lists(
    st.builds(pb.LogChunk, log=logs | texts, offset=numbers, data=st.binary(max_size=50)),
    max_size=3,
).map(lambda found: pb.LogChunks(chunks=found).SerializeToString())
callers = st.builds(
    servers.Caller, name=texts, where=texts, expires_ms=numbers,
    roles=st.dictionaries(texts | st.just("*"), texts | st.sampled_from(["viewer", "admin"]), max_size=2),
)  # fmt: skip
requests = st.builds(
    servers.ForwardedCall, operation=texts | st.sampled_from(["submit", "why", "join", "cancel", "status", "drain"]),
    arguments=st.binary(max_size=50), caller=callers,
)  # fmt: skip


@pytest.fixture(scope="module")
async def made(anyio_backend: str) -> AsyncIterator[SecuredServer]:
    async with secured_server() as status:
        yield status


@SEARCH
@given(st.sampled_from(NODES), outcome)
async def test_a_node_says_anything(made: SecuredServer, node: str, outcome: list[bytes]) -> None:
    async with channel_to(made.port, node_bundle(node)) as channel:
        code, message = await spoken(channel, f"/{AGENTS}/Connect", outcome)
    assert code in GOOD_ENDS, message
    made.whole()


@SEARCH
@given(
    st.sampled_from(NODES), fair_facts, st.lists(st.tuples(fair_runs, fair_reports), max_size=5),
    st.lists(st.tuples(st.lists(fair_reports, max_size=3), usages, st.booleans(), st.booleans()), max_size=4),
)  # fmt: skip
async def test_the_core_takes_all_that_passes_the_door(made: SecuredServer, node, facts, runs, beats) -> None:  # type: ignore[no-untyped-def]
    for run, report in runs:
        report.token = run.token
    allocated = [
        pb.Held(run=run, report=report) for run, report in {run.token: (run, rep) for run, rep in runs}.values()
    ]
    hello = pb.Hello(node=node, identity=f"machine-{node}/{next(NUMBERS)}", facts=facts, sent_ms=1, runs=allocated)
    async with played(made.port, node) as agent:
        await agent.call.write(pb.AgentFrame(hello=hello).SerializeToString())
        with suppress(AssertionError, grpc.aio.AioRpcError, asyncio.InvalidStateError):  # its runs may not be believed
            welcome = await agent.hear()
            for number, (reports, usage, lacking, leaving) in enumerate(beats, 1):
                beat = pb.Beat(
                    session=welcome.session if welcome is not None else 0, sequence=number, sent_ms=number,
                    reports=reports, usage=usage, lacking=lacking, leaving=leaving,
                )  # fmt: skip
                await agent.call.write(pb.AgentFrame(beat=beat).SerializeToString())
            await agent.call.done_writing()
        await agent.ending()
    await made.engine.settled()
    made.whole()


@SEARCH
@given(st.lists(chunks | st.binary(max_size=60), max_size=3))
async def test_a_node_ships_anything(made: SecuredServer, outcome: list[bytes]) -> None:
    async with channel_to(made.port, node_bundle("n1")) as channel:
        code, message = await spoken(channel, f"/{AGENTS}/Ship", outcome)
    assert code in GOOD_ENDS, message


@SEARCH
@given(
    st.sampled_from(["Renew", "Who"]),
    st.binary(max_size=60) | texts.map(lambda t: pb.Renewal(request=t).SerializeToString()),
)
async def test_a_node_or_a_server_asks_anything(made: SecuredServer, method: str, outcome: bytes) -> None:
    for bundle in (node_bundle("n1"), server_bundle()):
        async with channel_to(made.port, bundle) as channel:
            code, _ = await asked(channel, f"/{AGENTS}/{method}", outcome)
        assert code in GOOD_ENDS
        assert code != grpc.StatusCode.OK or (method == "Who" and bundle.name == "n1")


@SEARCH
@given(
    st.sampled_from(["Attend", "Status", "Forward", "FetchLog"]),
    requests.map(lambda found: found.SerializeToString()) | st.binary(max_size=60)
    | logs.map(lambda name: servers.LogRequest(log=name).SerializeToString()),
)  # fmt: skip
async def test_a_server_asks_anything(made: SecuredServer, method: str, outcome: bytes) -> None:
    async with channel_to(made.port, server_bundle()) as channel:
        code, received = await asked(channel, f"/{SERVERS}/{method}", outcome)
    assert code in GOOD_ENDS
    if method == "Forward" and code is grpc.StatusCode.OK:
        assert servers.ForwardedReply.FromString(received[0]).refusal.status not in (500,)
    made.whole()


async def test_afterwards_work_is_done_as_ever(made: SecuredServer) -> None:
    await made.works()
