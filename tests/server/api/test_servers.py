"""Who leads, told by a server that is alone; several are in tests/failover."""

from tests.server.house import house


async def test_a_server_that_is_alone_leads() -> None:
    async with house() as made:
        told = await made.get("/v1/servers")
        assert [(each["role"], each["revision"]) for each in told["items"]] == [("leader", made.engine.state.revision)]
        assert told["timing"] is None
        assert (await made.get("/leader")) == {"leads": True, "name": "", "api": ""}


async def test_nobody_leads_while_nothing_can_be_decided() -> None:
    async with house() as made:
        made.engine.ready = False
        assert (await made.get("/leader", expect=503))["leads"] is False


async def test_a_server_that_is_alone_has_nobody_to_hand_over_to() -> None:
    async with house() as made:
        before = made.snapshot()
        assert (await made.post("/v1/leader/transfer", {}, expect=409))["code"] == "alone"
        assert (await made.post("/v1/leader/transfer", {"to": 7}, expect=422))["path"] == "to"
        assert made.snapshot() == before and made.engine.ready
