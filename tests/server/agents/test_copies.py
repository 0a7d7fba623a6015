"""Copies between a leader and an agent over gRPC: asked for, allowed to be read, reported, held, and let go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from roost.model.errors import Conflict, Invalid, NotFound, RoostError
from roost.model.events import SetProject
from roost.model.protocol import CopyProblem, CopyReport, Report, Run
from roost.model.records.files import FileSet, Outputs
from roost.model.records.project import FILES, Project
from roost.ports.blobs import digest_of
from roost.server.files import copies
from roost.server.files.copies import Copy
from roost.server.files.copying import CopyRequest
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_copy_report
from tests.server.agents.test_file_transfer import (
    FOREIGN,
    SMALL,
    call,
    get,
    manifest_of,
    refusal,
    running,
    store,
)
from tests.server.gateway_server import DEADLINE_S, GatewayServer, Played, ended

SENT = manifest_of(*SMALL)
SENT_SET = FileSet(digest_of(SENT), len(SMALL), sum(map(len, SMALL)))
ID = "a" * 32


def into(path: str = "x", id: str = ID) -> CopyRequest:
    return CopyRequest(id, "default", path, digest_of(SENT), "", is_file=False)


def out_of(path: str = "x", id: str = ID) -> CopyRequest:
    return CopyRequest(id, "default", path, "", "", is_file=False)


class Copied:
    def __init__(self, made: GatewayServer, agent: Played, run: Run) -> None:
        self.made, self.agent, self.run, self.token = made, agent, run, run.token

    async def ask(self, request: CopyRequest, wait_s: float = 0) -> Copy | None:
        return await self.made.copying.copy(request, self.made.instance(), "ann", wait_s)

    async def flagged(self) -> None:
        """Frames of the server until one says that there are copies."""
        async with asyncio.timeout(DEADLINE_S):
            while not pb.ServerFrame.FromString(await self.agent.call.read()).answer.copies:
                pass

    async def take(self) -> list[str]:
        reply = await call(self.agent, "TakeCopies", pb.TakeCopiesRequest(), pb.TakeCopiesReply)
        return [copy.id for copy in reply.copies]

    async def tell(self, **fields: Any) -> None:
        report = CopyReport(**{"id": ID, "token": self.token, **fields})
        await call(self.agent, "ReportCopy", pack_copy_report(report), pb.CopyReported)

    async def read(self) -> None:
        await get(self.agent, self.token, (digest_of(SENT), 0), (digest_of(SMALL[0]), 0))


@asynccontextmanager
async def copied(**fields: Any) -> AsyncIterator[Copied]:
    async with running(**{"inputs": [], "outputs": [], **fields}) as (made, agent, run):
        await store(made, SENT)
        await agent.beat(Report(run.token, "running"))
        await made.until(lambda: made.instance().state == "running")
        yield Copied(made, agent, run)


async def test_files_for_a_run_are_read_by_its_node_while_they_are_copied_and_not_before_or_after() -> None:
    async with copied() as it:
        assert await refusal(it.read()) is grpc.StatusCode.PERMISSION_DENIED
        assert await it.ask(into()) is None
        await it.flagged()
        assert await it.take() == [ID]
        await it.read()
        assert await refusal(get(it.agent, it.token, (digest_of(FOREIGN), 0))) is grpc.StatusCode.PERMISSION_DENIED
        waiting = asyncio.ensure_future(it.ask(into(), DEADLINE_S))
        await it.tell(place="x")
        done = await waiting
        assert done is not None and done.files == SENT_SET and done.report is not None and done.report.place == "x"
        assert await refusal(it.read()) is grpc.StatusCode.PERMISSION_DENIED
        assert await it.take() == []


async def test_what_a_copy_moves_is_held_until_it_is_ended() -> None:
    async with copied() as it:
        files = it.made.files.project("default")
        await it.ask(into())
        assert set(files.held_sets()) == {digest_of(SENT)}
        await it.tell()
        assert set(files.held_sets()) == {digest_of(SENT)}, "its client may not have seen the end"
        await it.made.copying.end(ID, "default", "default/job.0")
        assert not files.held_sets() and not it.made.copying._holds
        await it.ask(out_of())
        await it.tell(outputs=Outputs(SENT_SET))
        assert set(files.held_sets()) == {digest_of(SENT)}
        await it.made.copying.end(ID, "default", "default/job.0")
        assert not files.held_sets() and not it.made.copying._holds


async def test_a_client_that_has_gone_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with copied() as it:
        await it.ask(into())
        monkeypatch.setattr(copies, "ASKED_MS_MAX", 0)
        await it.made.copying._expire()
        assert not it.made.files.project("default").held_sets() and await it.take() == []


@pytest.mark.parametrize(
    ("report", "kind", "code"),
    [
        ({"problem": CopyProblem.NOT_FOUND, "message": "x: none"}, NotFound, "no_such_file"),
        ({"problem": CopyProblem.REFUSED, "message": "x: a link"}, Invalid, "invalid"),
        ({"problem": CopyProblem.NOT_RUNNING}, Conflict, "not_running"),
        ({"problem": CopyProblem.FAILED, "message": "no space"}, Conflict, "copy_failed"),
        ({"outputs": Outputs(FileSet(digest_of(SENT), 1, 1))}, Conflict, "copy_failed"),
        ({"outputs": Outputs(FileSet("sha256:" + "1" * 64, 1, 1))}, Conflict, "copy_failed"),
    ],
)
async def test_a_copy_that_failed_or_lies_is_an_error(report: Any, kind: type[RoostError], code: str) -> None:
    async with copied() as it:
        await it.ask(out_of())
        await it.tell(**report)
        for _ in range(2):
            with pytest.raises(kind) as refused:
                await it.ask(out_of())
            assert refused.value.code == code


async def test_the_end_of_the_attempt_is_the_end_of_its_copies() -> None:
    async with copied() as it:
        await it.ask(into())
        instance = it.made.instance()
        await it.agent.beat(ended(it.run))
        await it.made.until(lambda: it.made.instance().state == "succeeded")
        await it.made.copying._expire()
        with pytest.raises(Conflict, match="ended before") as refused:
            await it.made.copying.copy(into(), instance, "ann", 0)
        assert refused.value.code == "not_running"
        with pytest.raises(Conflict, match="is succeeded; files are copied while it runs"):
            await it.ask(into(id="b" * 32))


async def test_a_node_that_does_not_begin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with copied() as it:
        await it.ask(into())
        monkeypatch.setattr(copies, "TAKEN_MS_MAX", 0)
        await it.made.copying._expire()
        with pytest.raises(Conflict) as refused:
            await it.ask(into())
        assert refused.value.code == "not_taken"


async def test_outcomes_of_foreign_attempts_and_words_without_sense_are_not_taken() -> None:
    async with copied() as it:
        await it.ask(into())
        await it.tell(token=it.token + 1)
        await it.tell(id="b" * 32)
        assert await it.ask(into()) is None
        for wrong in ({"problem": "nonsense"}, {"message": "x" * 10_001}, {"grown": ("x",) * 101}):
            assert await refusal(it.tell(**wrong)) is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(Conflict) as refused:
            await it.ask(into("another/path"))
        assert refused.value.code == "id_in_use"


async def test_the_quota_of_the_project_counts_copies() -> None:
    async with copied() as it:
        project = Project("default", quota={FILES: 3})
        await it.made.engine.ask(lambda request: SetProject(request, project))
        await it.ask(into())
        await store(it.made, manifest_of(b"one"), b"one")
        other = CopyRequest("b" * 32, "default", "x", digest_of(manifest_of(b"one")), "", is_file=False)
        for request in (other, out_of(id="c" * 32)):
            with pytest.raises(Conflict) as refused:
                await it.ask(request)
            assert refused.value.code == "quota_exceeded"
        await it.made.copying.end(ID, "default", "default/job.0")
        assert await it.ask(other) is None
        assert set(it.made.files.project("default").held_sets()) == {other.digest}
