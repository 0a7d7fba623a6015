"""Logs on the agents' port: a node writes those of its own attempts, and no others."""

from roost.model.protocol import Report, Run
from roost.model.spec.document import encode_document, read_document
from roost.server.logs.machine import ENOUGH
from tests.security.hostile_nodes import shipped, shipping, two_nodes
from tests.server.gateway_server import (
    played,
    runs_of,
)


async def test_another_nodes_log_is_not_written() -> None:
    async with two_nodes() as (server, agent, evil, run):
        log = f"default/job/{run.serial}/0.{run.attempt}"
        async with shipping(evil) as ship:
            assert await shipped(ship, log, b"lies") == ENOUGH
        assert server.logs.size(log) is None
        async with shipping(agent) as ship:
            assert await shipped(ship, log, b"truth") == 5


async def test_a_log_of_nothing_that_was_ever_there_is_not_written() -> None:
    async with two_nodes() as (server, _, evil, run):
        async with shipping(evil) as ship:
            for log in (f"default/job/{run.serial}/0.7", f"default/job/{run.serial + 1}/0.1", "default/other/1/0.1"):
                assert await shipped(ship, log, b"x") == ENOUGH
                assert server.logs.size(log) is None


async def test_a_log_of_an_earlier_attempt_comes_from_where_that_was() -> None:
    async with two_nodes() as (server, agent, evil, run):
        await agent.close()
        await server.cancel("default/job")
        await server.submit(name="moves", fenced=False)  # so it starts elsewhere as soon as its stream breaks
        (first,) = runs_of(await evil.orders())
        async with played(server.port, "n3") as successor, shipping(evil) as ship:
            await successor.hello()
            await evil.beat(Report(first.token, "running"))
            await evil.answer()
            evil.call.cancel()
            (second,) = runs_of(await successor.orders())
            assert (first.attempt, second.attempt) == (1, 2)
            log = f"default/moves/{first.serial}/0"
            assert await shipped(ship, f"{log}.1", b"first") == 5
            assert await shipped(ship, f"{log}.2", b"lies") == ENOUGH
            async with shipping(successor) as own:
                assert await shipped(own, f"{log}.2", b"second") == 6
                assert await shipped(own, f"{log}.1", b"lies") == ENOUGH


async def test_a_server_that_forgot_believes_a_hello_about_what_no_other_node_has() -> None:
    async with two_nodes() as (server, _, evil, run):
        document = encode_document(read_document({"name": "mine", "command": ["/bin/true"]}))
        own = Run(5, "default/mine", 0, 1, document, serial=9)
        stolen = Run(run.token, run.workload, 0, run.attempt, run.document, serial=run.serial)
        older = Run(4, run.workload, 0, 1, run.document, serial=8)
        claimed = (
            (own, Report(5, "ended", log_size=3)),
            (stolen, Report(run.token, "ended", log_size=0)),
            (older, Report(4, "ended", log_size=5)),
        )
        async with played(server.port, "n3") as agent:
            await agent.hello(runs=claimed)
            async with shipping(agent) as ship:
                assert await shipped(ship, "default/mine/9/0.1", b"own") == 3
                for suffix in ("", ".stderr"):  # of a workload whose name was given to another one since
                    assert await shipped(ship, f"default/job/8/0.1{suffix}", b"older") == 5
                assert await shipped(ship, f"default/job/{run.serial}/0.{run.attempt}", b"lies") == ENOUGH
        assert server.engine.state.instances["default/job.0"].log_size is None


async def test_a_node_that_claims_a_coming_attempt_of_another_node_neither_ends_nor_writes_its_log() -> None:
    async with two_nodes() as (server, agent, _, run):
        coming = Run(run.token + 1, run.workload, 0, run.attempt + 1, run.document, serial=run.serial)
        claims = {"ended": Report(coming.token, "ended", cause="exited", code=0, log_size=0)}
        claims["running"] = Report(coming.token, "running")
        log = f"default/job/{run.serial}/0.{coming.attempt}"
        for name, claim in claims.items():
            async with played(server.port, f"evil-{name}") as evil, shipping(evil) as ship:
                await evil.hello(runs=[(coming, claim)])
                assert await shipped(ship, log, b"lies") == ENOUGH, name
        instance = server.engine.state.instances["default/job.0"]
        assert (instance.state, instance.node, instance.attempt, instance.log_size) == ("running", "n1", 1, None)
        assert server.logs.size(log) is None
        await agent.quiet()
