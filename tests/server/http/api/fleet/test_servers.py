"""Who leads, reported by a server that is alone; several are in tests/failover."""

import msgspec

from roost.ports.store import Snapshot, require
from roost.server.engine.role import Starting
from roost.stores.memory import MemoryStore
from tests.server.inprocess_server import in_role, inprocess_server


async def test_a_server_that_is_alone_leads() -> None:
    async with inprocess_server() as made:
        answer = await made.get("/v1/servers")
        assert [(item["role"], item["revision"]) for item in answer["items"]] == [
            ("leader", made.engine.state.revision)
        ]
        assert answer["timing"] is None
        assert (await made.get("/leader")) == {"leads": True, "name": "", "api": ""}


async def test_no_server_leads_while_nothing_can_be_decided() -> None:
    async with inprocess_server() as made:
        with in_role(made.engine, Starting()):
            assert (await made.get("/leader", expect=503))["leads"] is False


async def test_a_server_that_is_alone_has_no_successor() -> None:
    async with inprocess_server() as made:
        before = made.snapshot()
        assert (await made.post("/v1/leader/transfer", {}, expect=409))["code"] == "alone"
        assert (await made.post("/v1/leader/transfer", {"to": 7}, expect=422))["path"] == "to"
        assert made.snapshot() == before and made.engine.ready


async def test_a_backup_holds_what_is_stored() -> None:
    store = MemoryStore()
    async with inprocess_server(store) as made:
        await made.submit("a")
        answer = await made.client.get("/v1/backup")
        snapshot = msgspec.msgpack.decode(answer.content, type=Snapshot)
        stored = require(await store.load())
        assert snapshot.revision == stored.revision
        assert sorted(snapshot.records) == sorted(stored.records)
