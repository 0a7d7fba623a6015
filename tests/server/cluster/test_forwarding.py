"""Which server a request is forwarded to while the lead changes hands, and when its caller has the answer."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import Invalid, NoService, OutOfRange
from roost.model.records.instance import Instance
from roost.model.records.result import Result
from roost.ports.blobs import digest_of
from roost.ports.store import News, Snapshot
from roost.schema.files import Digests, UploadView
from roost.schema.work import ResultBody
from roost.server.auth.principal import ALL, Principal, Redactor
from roost.server.cluster import forwarding
from roost.server.cluster.election import ServerIdentity
from roost.server.cluster.forwarding import Forwarder, answer, codec_of
from roost.server.engine import engine as engines
from roost.server.engine.engine import Clock, Engine
from roost.server.feed.change_log import FeedUpdate, Watch
from roost.server.operations.work.documents import Documents
from roost.server.operations.work.events import changes
from roost.server.operations.work.files import RawBody, put_blob, read_blob, read_contents
from roost.server.operations.work.instances import post_result, without_data
from roost.server.operations.work.workloads import submit
from roost.server.views.work import instance_view
from roost.stores.memory import MemoryStore
from roost.wire import servers_pb2 as pb
from tests.server.inprocess_server import InprocessServer, inprocess_server

ME, OLD, NEW = (ServerIdentity(name, name, "", f"{name}:1") for name in ("me", "old", "new"))


class Reached:
    """Peers of which only the new leader can be reached. `after`: what has changed when the old one was tried."""

    def __init__(self, after: Any) -> None:
        self.tried: list[str] = []
        self._after = after

    async def reaches(self, peer: ServerIdentity) -> bool:
        self.tried.append(peer.name)
        self._after()
        return peer is NEW


def forwarder(after: str) -> tuple[Forwarder, Reached]:
    election = SimpleNamespace(leader=OLD)
    engine = SimpleNamespace(ready=False, failed="", leadership=SimpleNamespace(election=election, identity=ME))

    def changed() -> None:
        if after == "another leads":
            election.leader = NEW
        elif after == "this one leads":
            engine.ready = True

    peers = Reached(changed)
    return Forwarder(cast(Any, engine), cast(Any, peers)), peers


async def test_a_request_waits_for_the_next_leader_when_the_old_one_has_gone() -> None:
    made, peers = forwarder("another leads")
    assert await made.leader() is NEW
    assert peers.tried == ["old", "new"]


async def test_a_server_that_takes_over_meanwhile_answers_itself() -> None:
    made, _ = forwarder("this one leads")
    assert await made.leader() is None


async def test_a_leader_that_cannot_be_reached_is_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "WAIT_S", 0.05)
    made, peers = forwarder("nothing")
    with pytest.raises(NoService, match="the leader at old:1 cannot be reached"):
        await made.leader()
    assert len(peers.tried) > 1


class Standby:
    """A server that forwards to a leader, and learns of commits only when a test says so."""

    def __init__(self, store: MemoryStore, leader: InprocessServer, snapshot: Snapshot) -> None:
        self._store = store
        self._leader = leader
        self.has_answer = asyncio.Event()  # the leader has done what was forwarded
        self.watch = Watch()
        perform = SimpleNamespace(followed=self.watch.publish)
        leadership: Any = SimpleNamespace(election=SimpleNamespace(leader=NEW), identity=ME, machine=None)
        self.engine = Engine(store, Settings(), cast(Any, perform), Clock(), leadership=leadership)
        self.engine.mirrored(snapshot)
        self.watch.begin(self.engine.state.meta.first_serial, snapshot.revision)
        self.forwarder = Forwarder(self.engine, cast(Any, self))

    async def reaches(self, _: ServerIdentity) -> bool:
        return True

    async def forward(self, _: ServerIdentity, call: pb.ForwardedCall) -> AsyncIterator[pb.ForwardedReply]:
        async for reply in answer(self._leader.context, call):
            self.has_answer.set()
            yield reply

    async def submit(self, name: str) -> bool:
        """Whether this server knows of a workload once its submission through it was answered."""
        document = Documents(b'{"name": "%s", "command": "true"}' % name.encode())
        submitted = await self.forwarder.perform(Principal("root", "", ALL), submit, (document,), {})
        return submitted.key in self.engine.state.workloads

    async def changes(self, since: str) -> AsyncGenerator[FeedUpdate, None]:
        async def state() -> State:
            return self.engine.state

        context = SimpleNamespace(watch=self.watch)
        call = SimpleNamespace(engine=self.engine, context=context, state=state, redactor=Redactor(ALL))
        return await changes(cast(Any, call), since)

    async def follow(self) -> None:
        async for news in self._store.follow(self.engine.state.revision):
            assert isinstance(news, News)
            self.engine.followed(news)
            return


async def test_what_is_submitted_through_a_standby_is_there_when_it_answers() -> None:
    store = MemoryStore()
    async with inprocess_server(store) as leader:
        standby = Standby(store, leader, cast(Snapshot, await store.load()))
        submitting = asyncio.ensure_future(standby.submit("job"))
        await standby.has_answer.wait()
        for _ in range(10):
            await asyncio.sleep(0)  # the answer has all the turns it needs
        await standby.follow()
        assert await submitting


async def test_a_standby_that_stays_behind_answers_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MIRROR_S_MAX", 0.01)
    store = MemoryStore()
    async with inprocess_server(store) as leader:
        standby = Standby(store, leader, cast(Snapshot, await store.load()))
        assert not await standby.submit("job")
        assert "default/job" in leader.engine.state.workloads


async def test_a_stream_that_is_resumed_at_a_standby_that_is_behind_repeats_nothing() -> None:
    store = MemoryStore()
    async with inprocess_server(store) as leader:
        standby = Standby(store, leader, cast(Snapshot, await store.load()))
        await leader.submit("job")
        mark = leader.watch.mark(leader.watch.revision)  # of a reader that has seen the job at the leader

        async def first_update() -> FeedUpdate:
            async with aclosing(await standby.changes(mark)) as stream:
                return await anext(stream)

        reading = asyncio.ensure_future(first_update())
        for _ in range(10):
            await asyncio.sleep(0)  # a reset would have come by now
        await standby.follow()
        first = await reading
        assert (first.id, first.reset_at) == (mark, None)


async def test_a_standby_that_stays_behind_sends_readers_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MIRROR_S_MAX", 0.01)
    store = MemoryStore()
    async with inprocess_server(store) as leader:
        standby = Standby(store, leader, cast(Snapshot, await store.load()))
        await leader.submit("job")
        with pytest.raises(NoService, match="this server is behind"):
            await standby.changes(leader.watch.mark(leader.watch.revision))


async def test_files_are_sent_and_read_through_a_standby() -> None:
    store = MemoryStore()
    async with inprocess_server(store) as leader:
        standby = Standby(store, leader, cast(Snapshot, await store.load()))
        data = bytes(range(256)) * (5 << 12)  # more than a piece of an answer
        root, digest = Principal("root", "", ALL), digest_of(data)

        async def perform(operation: Any, *args: Any, **query: Any) -> Any:
            return await standby.forwarder.perform(root, operation, args, query)

        half = len(data) // 2
        for offset, piece, stored in ((0, data[:half], False), (half, data[half:], True)):
            sent = await perform(put_blob, "default", digest, RawBody(piece), len(data), offset)
            assert sent == UploadView(offset + len(piece), stored)
        pieces = [piece.data async for piece in await perform(read_blob, "default", digest, offset=10)]
        assert b"".join(pieces) == data[10:]
        assert digest_of(await perform(read_contents, "default", Digests([digest]))) and len(pieces) > 1
        with pytest.raises(OutOfRange):
            await perform(read_blob, "default", digest, offset=len(data) + 1)
        with pytest.raises(Invalid, match="sha256"):
            await perform(put_blob, "default", "x", RawBody(b""), 1)


def test_a_posted_result_and_its_answer_go_through_another_server() -> None:
    codec = codec_of(post_result)
    for body in (ResultBody(1, None, "", {"a": [1, None]}), ResultBody(1, None, "", None), ResultBody(1, 0)):
        assert codec.unpack(codec.pack(("default", "job", 0, body), {}))["body"] == body
    view = instance_view(Instance("default/job", 0, result=Result(b'{"a":1}')))
    made = codec.answer(msgspec.msgpack.encode(without_data(view)))
    assert made.result.size == 7 and made == without_data(view)
