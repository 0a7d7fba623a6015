"""Secrets on their way: sealed in the state, opened only in the order to the node that needs them."""

import pickle
from typing import Any

import msgspec
import pytest

from roost.model.errors import Conflict, Invalid, TooMuch
from roost.model.events import PutRecords
from roost.model.protocol import Drop, Report, Run, Welcome
from roost.model.records.secret import Handed
from roost.server.pki.encryption import Seal
from roost.server.pki.secrets import Secrets
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_agent, unpack_agent
from tests.server.gateway_server import GatewayServer, gateway_server, played, runs_of

VALUE = b"planted-7f3a"
OLD, NEW = bytes(32), bytes([1] * 32)


async def keep(server: GatewayServer, key: str = "default/db", value: bytes = VALUE) -> None:
    record = server.secrets.record(key, value, "ann")
    await server.engine.ask(lambda request: PutRecords(request, (record,)))


async def forget(server: GatewayServer, key: str = "default/db") -> None:
    record = msgspec.structs.replace(server.secrets.record(key, VALUE, "ann"), value=None)
    await server.engine.ask(lambda request: PutRecords(request, (record,)))


def handed(run: Run) -> Handed:
    assert run.secrets is not None
    return run.secrets


def stored(server: GatewayServer) -> bytes:
    """Everything that the engine knows and could store."""
    state = server.engine.state
    parts: list[Any] = [
        state.opaque_records,
        [*state.workloads.values()],
        [*state.instances.values()],
        [*state.nodes.values()],
    ]
    return msgspec.msgpack.encode(parts)


async def test_a_run_gets_the_value_and_the_state_never_has_it() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await keep(server)
        await agent.hello()
        await server.submit(env={"PASSWORD": {"secret": "db"}, "AGAIN": {"secret": "db"}, "MODE": "x"})
        (run,) = runs_of(await agent.orders())
        assert (handed(run).values, handed(run).refusal) == ({"db": VALUE}, "")
        assert VALUE not in stored(server) and VALUE not in run.document
        await agent.quiet()


async def test_a_run_that_names_none_gets_none() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await keep(server)
        await agent.hello()
        await server.submit(env={"secret": "secret"}, labels={"secret": "db"})
        (run,) = runs_of(await agent.orders())
        assert run.secrets is None


async def test_secrets_of_another_project_are_not_to_be_had() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await keep(server, "other/db")
        await agent.hello()
        await server.submit(env={"PASSWORD": {"secret": "db"}})
        (run,) = runs_of(await agent.orders())
        assert handed(run).values == {} and "secret db cannot be opened" in handed(run).refusal


async def test_an_agent_that_comes_back_gets_secrets_only_of_runs_that_it_lacks() -> None:
    async with gateway_server() as server:
        await keep(server)
        async with played(server.port) as agent:
            await agent.hello()
            await server.submit(count=2, env={"PASSWORD": {"secret": "db"}})
            first, second = runs_of(await agent.orders())
        async with played(server.port) as agent:
            welcome = await agent.hello(runs=[(first.bare(), Report(first.token, "starting"))])
            again = {run.token: run for run in runs_of(welcome)}
            assert again[first.token].secrets is None
            assert handed(again[second.token]).values == {"db": VALUE}


async def test_a_secret_that_is_gone_fails_its_run_in_a_message_and_no_other() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await keep(server)
        await server.submit(env={"PASSWORD": {"secret": "db"}})
        await server.submit(name="plain")
        await forget(server)
        needs, plain = sorted(runs_of(await agent.hello()), key=lambda run: run.token)
        assert handed(needs).refusal.startswith("secret db cannot be opened: it is no longer there; `roost secrets")
        assert plain.secrets is None


async def test_a_wrong_key_fails_runs_that_need_it_and_is_marked() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await keep(server)
        server.secrets.seal = Seal(NEW)
        await server.submit(env={"PASSWORD": {"secret": "db"}})
        (run,) = runs_of(await agent.hello())
        assert handed(run).values == {}
        assert handed(run).refusal.startswith(
            "secret db cannot be opened: it was sealed with a key that is not here; give the server its --key-file"
        )
        view = server.secrets.view("default/db", server.engine.state.opaque_records["secret"]["default/db"])
        assert (view.readable, view.newest_key) == (False, False)


async def test_a_record_in_the_place_of_another_is_not_opened() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await keep(server, "other/db")
        swapped = msgspec.structs.replace(
            server.secrets.record("default/db", b"x", "eve"),
            value=server.engine.state.opaque_records["secret"]["other/db"],
        )
        await server.engine.ask(lambda request: PutRecords(request, (swapped,)))
        await server.submit(env={"PASSWORD": {"secret": "db"}})
        (run,) = runs_of(await agent.hello())
        assert handed(run).values == {} and "it is not what was sealed" in handed(run).refusal


async def test_more_bytes_than_a_run_may_have_are_refused() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        for number in range(5):
            await keep(server, f"default/s{number}", b"x" * (32 << 10))
        await server.submit(env={f"V{number}": {"secret": f"s{number}"} for number in range(5)})
        (run,) = runs_of(await agent.hello())
        assert handed(run).values == {} and "163,840 bytes together" in handed(run).refusal


async def test_what_an_agent_says_of_its_runs_brings_no_secret_in() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await keep(server)
        await agent.hello()
        await server.submit(env={"PASSWORD": {"secret": "db"}})
        (run,) = runs_of(await agent.orders())
    allocated = pb.Held(run=pb.Run(token=run.token, document=run.document, secrets={"db": VALUE}, refusal="x"))
    answer = unpack_agent(pb.AgentFrame(hello=pb.Hello(node="n1", runs=[allocated])))
    assert answer is not None and answer.runs[0][0].secrets is None  # type: ignore[union-attr]
    assert VALUE not in pack_agent(answer).SerializeToString()


async def test_everything_is_sealed_again_with_the_newest_key_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.server.pki.secrets.BATCH_MAX", 2)
    async with gateway_server() as server:
        for number in range(5):
            await keep(server, f"web/s{number}")
        lost = Secrets(server.engine)
        lost.seal = Seal(bytes([9] * 32))
        foreign = lost.record("web/lost", VALUE, "ann")
        await server.engine.ask(lambda request: PutRecords(request, (foreign,)))
        server.secrets.seal = Seal(NEW, OLD)
        before = server.engine.state.revision
        done = await server.secrets.reseal(server.engine.ask)
        assert (done.resealed, done.unreadable) == (5, ["web/lost"])
        assert server.engine.state.revision - before == 3
        server.secrets.seal = Seal(NEW)
        stored = server.engine.state.opaque_records["secret"]
        views = [server.secrets.view(key, stored[key]) for key in sorted(stored) if key != "web/lost"]
        assert all(view.readable and view.newest_key and view.changed_by == "ann" for view in views)
        assert (await server.secrets.reseal(server.engine.ask)).resealed == 0


async def test_a_value_set_while_it_is_sealed_again_wins() -> None:
    async with gateway_server() as server:
        await keep(server)
        server.secrets.seal = Seal(NEW, OLD)
        calls = 0

        async def ask(make: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                await keep(server, value=b"newer")
            return await server.engine.ask(make)

        assert (await server.secrets.reseal(ask)).resealed == 0
        record = server.engine.state.opaque_records["secret"]["default/db"]
        assert server.secrets.view("default/db", record).size == len(b"newer")

        async def never(make: Any) -> Any:
            raise Conflict("changed")

        server.secrets.seal = Seal(bytes([2] * 32), NEW)
        with pytest.raises(Conflict, match="being changed"):
            await server.secrets.reseal(never)


async def test_what_cannot_be_a_secret_is_refused() -> None:
    async with gateway_server() as server:
        with pytest.raises(Invalid, match="NUL"):
            server.secrets.record("web/db", b"a\0b", "ann")
        with pytest.raises(Invalid, match="at least one byte"):
            server.secrets.record("web/db", b"", "ann")
        with pytest.raises(TooMuch, match="32,768"):
            server.secrets.record("web/db", b"x" * (32 * 1024 + 1), "ann")
        with pytest.raises(Invalid, match="name"):
            server.secrets.record("web/d.b", b"x", "ann")
        assert server.secrets.record("web/db", b"x" * (32 * 1024), "ann").value is not None


def test_a_value_is_neither_shown_nor_written_down() -> None:
    run = Run(1, "web/job", 0, 1, b"", secrets=Handed({"db": VALUE}))
    frame = Welcome(1, 1, 1, 1, (run, Drop(2)))
    assert VALUE.decode() not in repr(frame) and "<1 secrets>" in repr(frame)
    with pytest.raises(TypeError):
        msgspec.msgpack.encode(run)
    with pytest.raises(TypeError):
        msgspec.json.encode(frame)
    with pytest.raises(TypeError):
        pickle.dumps(run)
    assert run.bare() == Run(1, "web/job", 0, 1, b"") and run.bare().bare() is not run
