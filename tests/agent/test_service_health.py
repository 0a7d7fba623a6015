"""An agent looks after the health of what it runs, and its server hears of it: real gRPC, real probes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from roost.agent.service import Service
from roost.drivers.fake import Exit, ScriptedAct
from roost.model.protocol import Report
from roost.ports.driver import RunRequest, StopReason
from tests.agent.agent_harness import PacedDriver, agent, until
from tests.server.gateway_server import GatewayServer, gateway_server

FAST = {"interval": "100ms", "timeout": "10s", "start": "60s", "failures": 2}


def endless(run: RunRequest) -> Sequence[ScriptedAct]:
    return (ScriptedAct(after_ms=None),)


class Site:
    """A web server whose health is what the test says; None: it does not answer."""

    def __init__(self) -> None:
        self.status: int | None = 200
        self.asked = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            if self.status is None:
                await reader.read()
            else:
                writer.write(f"HTTP/1.1 {self.status} so\r\n\r\n".encode())
                await writer.drain()
        writer.transport.abort()

    def check(self, **fields: Any) -> dict[str, Any]:
        return {"http": "/healthz", "port": self.port, **FAST, **fields}


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


def overheard(service: Service, *, also_hello: bool = False) -> list[Report]:
    """Every report that goes out from now on."""
    reports: list[Report] = []
    beat, hello = service.actor.beat, service.actor.hello

    def remember(*args: Any, **fields: Any) -> Any:
        sent = beat(*args, **fields)
        reports.extend(sent.reports)
        return sent

    def remember_hello(*args: Any) -> Any:
        sent = hello(*args)
        reports.extend(report for _, report in sent.runs)
        return sent

    service.actor.beat = remember  # type: ignore[method-assign]
    if also_hello:
        service.actor.hello = remember_hello  # type: ignore[method-assign]
    return reports


async def serve(server: GatewayServer, **fields: Any) -> None:
    await server.submit(name="web", kind="service", retries=0, restart={"when": "never"}, **fields)


def is_over(server: GatewayServer) -> bool:
    return server.instance("default/web.0").state == "failed"


def turns(reports: list[Report]) -> list[tuple[str, bool, str]]:
    """What was reported, without repeats."""
    outcome = [(report.cause or report.state, report.ready, report.error) for report in reports]
    return [item for number, item in enumerate(outcome) if not number or item != outcome[number - 1]]


async def test_a_service_becomes_ready_turns_bad_and_is_ended_as_unhealthy(tmp_path: Path) -> None:
    async with (
        site() as web,
        gateway_server() as server,
        agent(server.port, tmp_path, script=endless) as (service, driver),
    ):
        reports = overheard(service)
        web.status = 500
        await serve(server, health=web.check())
        await until(lambda: reports and reports[-1].error)
        assert (reports[-1].ready, reports[-1].error) == (False, "500")
        web.status = 204
        await until(lambda: reports[-1].ready)
        assert reports[-1].error == ""
        web.status = 503
        await until(lambda: reports[-1].state == "ended")
        assert (reports[-1].cause, reports[-1].error, reports[-1].ready) == ("unhealthy", "503", False)
        assert [order[1:] for order in driver.did("stop")] == [(10_000, StopReason.UNHEALTHY, "503")]
        assert reports[-1].token not in {*service.checks._targets, *service.checks._looks, *service.checks._timers}
        await server.until(lambda: server.instance("default/web.0").token != reports[0].token or is_over(server))


async def test_without_restart_it_only_stops_being_ready(tmp_path: Path) -> None:
    async with (
        site() as web,
        gateway_server() as server,
        agent(server.port, tmp_path, script=endless) as (service, driver),
    ):
        reports = overheard(service)
        await serve(server, health=web.check(restart=False))
        await until(lambda: reports and reports[-1].ready)
        web.status = 503
        await until(lambda: not reports[-1].ready)
        web.status = 200
        await until(lambda: reports[-1].ready)
        assert not driver.did("stop")


async def test_a_check_that_hangs_holds_up_no_beat(tmp_path: Path) -> None:
    async with (
        site() as web,
        gateway_server(lease_ms=400, lease_margin_ms=60_000) as server,
        agent(server.port, tmp_path, script=endless) as (service, _),
    ):
        web.status = None
        await serve(server, health=web.check(timeout="60s"))
        await until(lambda: web.asked == 1)
        beats = service.actor.sequence
        await until(lambda: service.actor.sequence >= beats + 5)
        assert service.checks._looks and web.asked == 1, "the check hangs as before, and there is no second one"
        await server.submit(name="other", command="true")
        await server.until(lambda: server.states() == ["running"] * 2)


async def test_one_that_is_ordered_to_stop_is_not_ready_and_its_check_is_broken_off(tmp_path: Path) -> None:
    def stubborn(run: RunRequest) -> Sequence[ScriptedAct]:
        return (ScriptedAct(after_ms=None, term_ms=None),)

    async with (
        site() as web,
        gateway_server() as server,
        agent(server.port, tmp_path, script=stubborn) as (service, driver),
    ):
        reports = overheard(service)
        await serve(server, health=web.check(), grace="1s")
        await until(lambda: reports and reports[-1].ready)
        web.status = None
        asked = web.asked
        await until(lambda: web.asked > asked)
        await server.cancel("default/web")
        await until(lambda: not reports[-1].ready)
        assert reports[-1].state == "running" and not service.checks._targets, "it is left before it has ended"
        await until(lambda: reports[-1].state == "ended")
        assert turns(reports)[-3:] == [("running", True, ""), ("running", False, ""), ("stopped", False, "")]
        assert not service.checks._looks


async def test_one_that_ends_by_itself_is_no_longer_looked_at(tmp_path: Path) -> None:
    async with (
        site() as web,
        gateway_server() as server,
        agent(server.port, tmp_path, script=endless) as (service, driver),
    ):
        await serve(server, health=web.check())
        await until(lambda: web.asked)
        ((token,),) = driver.did("start")
        driver.exits[token] = Exit(driver.now, 0)
        driver._arrange(0)
        await until(lambda: token not in driver.rules.live)
        checks = service.checks
        await until(lambda: int(token) not in {*checks._targets, *checks._looks, *checks._timers})


async def test_the_next_agent_goes_on_looking_and_says_not_ready_first(tmp_path: Path) -> None:
    driver = PacedDriver(endless)
    async with site() as web, gateway_server() as server:
        async with agent(server.port, tmp_path, driver=driver) as (service, _):
            reports = overheard(service)
            await serve(server, health=web.check())
            await until(lambda: reports and reports[-1].ready)
        web.status = None
        asked = web.asked
        async with agent(server.port, tmp_path, driver=driver) as (service, _):
            reports = overheard(service)
            ((_, first),) = service.actor.hello(1).runs
            assert (first.state, first.ready) == ("running", False)
            await until(lambda: web.asked > asked)
            web.status = 200
        async with agent(server.port, tmp_path, driver=driver) as (service, _):
            reports = overheard(service, also_hello=True)  # a check may succeed before the agent is connected
            await until(lambda: reports and reports[-1].ready)
            assert server.instance("default/web.0").attempt == 1 and not driver.did("stop")


async def test_an_end_for_bad_health_keeps_its_cause_over_the_death_of_its_agent(tmp_path: Path) -> None:
    driver = PacedDriver(lambda run: (ScriptedAct(after_ms=None, term_ms=None),))
    async with site() as web, gateway_server() as server:
        async with agent(server.port, tmp_path, driver=driver):
            await serve(server, health=web.check(failures=1), grace="500ms")
            await until(lambda: web.asked)
            web.status = 503
            await until(lambda: driver.did("stop"))
        asked = web.asked
        async with agent(server.port, tmp_path, driver=driver) as (service, _):
            reports = overheard(service)
            await until(lambda: reports and reports[-1].state == "ended")
            assert (reports[-1].cause, reports[-1].error) == ("unhealthy", "503")
            assert web.asked == asked


async def test_a_check_by_command_runs_where_the_run_does(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless) as (service, driver):
        reports = overheard(service)
        check = {"command": "test -e ready && echo $ROOST_WORKLOAD $A > answer", **FAST, "timeout": "10s"}
        await serve(server, health=check, env={"A": "b"})
        ((token,),) = await until(lambda: driver.did("start"))
        await until(lambda: reports and reports[-1].error)
        assert reports[-1].error == f"{tmp_path}/work/{token}: no such file or directory"
        work = tmp_path / "work" / token
        work.mkdir(parents=True)
        (work / "ready").touch()
        await until(lambda: reports[-1].ready)
        assert (work / "answer").read_text() == "web b\n"
