"""An agent with its server: real gRPC between them, a real engine, and the keeper's twin instead of processes."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from roost.agent import machine as agent_machine
from roost.agent import service as agent_service
from roost.agent.actor import Action
from roost.agent.connection import machine as link_machine
from roost.agent.connection.machine import StreamEnd
from roost.drivers.fake import Exit, ScriptedAct
from roost.model.protocol import Answer, Beat, Usage
from roost.model.reasons.attempts import StoppedByNode
from roost.model.reasons.nodes import NodeLeft
from roost.model.reasons.reason import RetriesExhausted
from roost.ports.driver import KnownRun, KnownRuns, Order, Refusal, RunRequest, StartRefused, StopReason
from roost.stores.memory import Memory, MemoryStore
from tests.agent.agent_harness import USAGE, PacedDriver, agent, until
from tests.server.gateway_server import gateway_server, played


def endless(run: RunRequest) -> Sequence[ScriptedAct]:
    return (ScriptedAct(after_ms=None),)


def _without_time(usage: Usage | None) -> Usage | None:
    return usage and msgspec.structs.replace(usage, at_ms=0)


def fails(run: RunRequest) -> Sequence[ScriptedAct]:
    return (ScriptedAct(code=3),)


async def test_a_job_runs_and_its_end_is_known(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path) as (service, driver):
        await server.submit(command=["/bin/echo", "hi"], env={"A": "b"}, timeout="5s", grace="2s")
        await server.until(lambda: server.states() == ["succeeded"])
        await until(lambda: not service.actor.attempts)
        assert [len(driver.did(what)) for what in ("start", "stop", "forget")] == [1, 0, 1]
        assert server.instance().exit_code == 0
        assert not service.machine.logs and not service.machine._sizes and not service.machine._sizes_sum


async def test_orders_to_the_driver(tmp_path: Path) -> None:
    runs: list[RunRequest] = []

    def remember(run: RunRequest) -> Sequence[ScriptedAct]:
        runs.append(run)
        return (ScriptedAct(),)

    offer = {"cpu": 4_000, "memory": 1 << 30}
    async with gateway_server() as server, agent(server.port, tmp_path, script=remember, resources=offer):
        await server.submit(
            name="one", steps=[{"run": "a"}, {"run": "b", "ignore_failure": True}], env={"A": "b"},
            timeout="5s", grace="2s", fenced=False, resources={"cpu": "500m", "memory": "1MiB"},
        )  # fmt: skip
        await server.submit(name="two", command="x y", count=2, resources={"gpu": 0})
        await server.until(lambda: server.states() == ["succeeded"] * 3)
    one, two = (
        runs[0],
        next(run for run in runs if run.env["ROOST_WORKLOAD"] == "two" and run.env["ROOST_INDEX"] == "1"),
    )
    assert [(step.argv, step.ignore_failure) for step in one.steps] == [
        (["/bin/sh", "-c", "a"], False),
        (["/bin/sh", "-c", "b"], True),
    ]
    assert (one.timeout_ms, one.grace_ms, one.leased) == (5_000, 2_000, False)
    assert one.limits is not None and (one.limits.cpu_m, one.limits.memory) == (500, 1 << 20)
    assert one.env == {
        "A": "b",
        "ROOST_PROJECT": "default",
        "ROOST_WORKLOAD": "one",
        "ROOST_VERSION": "1",
        "ROOST_INDEX": "0",
        "ROOST_COUNT": "1",
        "ROOST_ATTEMPT": "1",
        "ROOST_ATTEMPT_TOKEN": one.id,
        "ROOST_NODE": "n1",
        "ROOST_RESULT": f"{tmp_path}/work/{one.id}/.roost-result.json",
    }
    assert one.dir == f"{tmp_path}/work/{one.id}" and one.log.startswith(f"{tmp_path}/logs/default~one~")
    assert two.leased and two.limits is None
    assert (two.env["ROOST_COUNT"], two.steps[0].argv) == ("2", ["/bin/sh", "-c", "x y"])


async def test_failures_and_timeouts_are_reported_as_they_were(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, script=fails):
        await server.submit(retries=0)
        await server.until(lambda: server.states() == ["failed"])
        assert server.instance().exit_code == 3
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless):
        await server.submit(timeout="50ms", grace="1s")
        await server.until(lambda: server.states() == ["timed_out"])


async def test_cancelling_stops_with_the_grace_that_was_asked_for(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless) as (_, driver):
        await server.submit(grace="3s")
        await server.until(lambda: server.states() == ["running"])
        await server.cancel("default/job")
        await server.until(lambda: server.states() == ["cancelled"])
        assert [order[1:] for order in driver.did("stop")] == [(3_000, StopReason.ORDERED, "cancel_requested")]


async def test_three_jobs_wait_for_two_agents_and_are_spread(tmp_path: Path) -> None:
    async with gateway_server() as server:
        await server.submit(count=3)
        async with (
            agent(server.port, tmp_path / "a", "a", script=endless) as (_, first),
            agent(server.port, tmp_path / "b", "b", script=endless) as (_, second),
        ):
            await server.until(lambda: server.states() == ["running"] * 3)
            assert len(first.did("start")) + len(second.did("start")) == 3


async def test_a_start_is_reported_soon_and_use_is_measured(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless):
        await server.submit()
        await server.until(lambda: server.states() == ["running"])
        await server.until(lambda: _without_time(server.engine.state.liveness["n1"].usage) == USAGE)


async def test_beats_keep_the_lease(tmp_path: Path) -> None:
    async with gateway_server(lease_ms=3_000) as server:
        async with agent(server.port, tmp_path, script=endless):
            await server.submit(count=4)
            await server.until(lambda: server.states() == ["running"] * 4)
            node = server.engine.state.liveness["n1"]
            first_ms = node.lease_until_ms
            await server.until(lambda: node.lease_until_ms > first_ms + 3_000)
            assert server.states() == ["running"] * 4
            assert [transition.state for _, transition in server.nodes] == ["ready"]


async def test_a_burst_of_answers_is_one_word_about_the_lease(tmp_path: Path) -> None:
    async with gateway_server(lease_ms=60_000) as server, agent(server.port, tmp_path) as (_, driver):
        for number in range(20):
            await server.submit(name=f"job-{number}")
            await server.until(
                lambda number=number: len(server.states()) > number and set(server.states()) == {"succeeded"}
            )
        assert len(driver.did("start")) == 20
        assert len(driver.did("lease")) <= 3


# --- streams that break -----------------------------------------------------------------------------------------------


async def test_a_new_agent_adopts_what_the_driver_kept(tmp_path: Path) -> None:
    driver = PacedDriver(endless)
    async with gateway_server() as server:
        async with agent(server.port, tmp_path, driver=driver):
            await server.submit(count=2)
            await server.until(lambda: server.states() == ["running"] * 2)
        await server.until(lambda: server.engine.state.nodes["n1"].status == "suspect")
        async with agent(server.port, tmp_path, driver=driver) as (service, _):
            await server.until(lambda: server.engine.state.nodes["n1"].status == "ready")
            assert {attempt.state for attempt in service.actor.attempts.values()} == {"running"}
            assert server.states() == ["running"] * 2
            assert [instance.attempt for instance in server.engine.state.instances.values()] == [1, 1]
            assert len(driver.did("start")) == 2


async def test_an_end_while_there_is_no_agent_is_reported_by_the_next(tmp_path: Path) -> None:
    driver = PacedDriver(endless)
    async with gateway_server() as server:
        async with agent(server.port, tmp_path, driver=driver):
            await server.submit(retries=0)
            await server.until(lambda: server.states() == ["running"])
        for run in driver.rules.live:
            driver.exits[run] = Exit(driver.now, code=5)
        driver.advance(driver.now)
        assert not driver.rules.live
        async with agent(server.port, tmp_path, driver=driver):
            await server.until(lambda: server.states() == ["failed"])
            assert server.instance().exit_code == 5


async def test_a_restarted_server_finds_everything_as_it_was_and_starts_nothing_again(tmp_path: Path) -> None:
    memory = Memory()
    driver = PacedDriver(endless)
    async with gateway_server(MemoryStore(memory)) as server:
        port = server.port
        async with agent(port, tmp_path, driver=driver) as (service, _):
            await server.submit(count=3)
            await server.until(lambda: server.states() == ["running"] * 3)
            await server.gateway.stop(0)
            server.engine.stop()
            async with gateway_server(MemoryStore(memory), port=port) as again:
                await again.until(lambda: len(again.gateway.machine.sessions) == 1)
                assert again.states() == ["running"] * 3
                assert len(driver.did("start")) == 3 and not driver.did("stop")
                await again.submit(name="next")
                await again.until(lambda: "running" in again.instance("default/next.0").state)
                assert service.actor.session


async def test_a_server_without_memory_adopts_what_runs(tmp_path: Path) -> None:
    driver = PacedDriver(endless)
    async with gateway_server() as server:
        port = server.port
        async with agent(port, tmp_path, driver=driver):
            await server.submit(count=2)
            await server.until(lambda: server.states() == ["running"] * 2)
            await server.gateway.stop(0)
            server.engine.stop()
            async with gateway_server(port=port) as again:
                await again.until(lambda: again.states() == ["running"] * 2)
                assert len(driver.did("start")) == 2 and not driver.did("stop")
                await again.cancel("default/job")
                await again.until(lambda: again.states() == ["cancelled"] * 2)


async def test_no_server_at_first_is_waited_out_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_machine, "RETRY_MS_MAX", 50)
    async with gateway_server() as server:
        port = server.port
    async with agent(port, tmp_path) as (service, _):
        await until(lambda: service.machine.link.tries > 5)
        async with gateway_server(port=port) as server:
            await until(lambda: service.actor.session)
            lines = capsys.readouterr().err.splitlines()
            assert len([line for line in lines if "not connected" in line]) == 1
            assert len([line for line in lines if f"connected to 127.0.0.1:{port} as n1" in line]) == 1


async def test_a_revoked_certificate_is_reported_in_plain_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway_server() as server:
        server.certificates._known.add("n1")
        async with agent(server.port, tmp_path) as (service, _):
            await until(lambda: service.machine.link.tries)
        message = "the server does not take our certificate: the certificate of node n1 was revoked"
        assert message in capsys.readouterr().err
        assert service.machine.link._pause_ms(StreamEnd.BAD_CERTIFICATE) == link_machine.REFUSED_MS


async def test_a_taken_name_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_machine, "NAME_TAKEN_MS", 20)
    async with gateway_server() as server:
        async with played(server.port) as other:
            await other.hello("another machine")
            async with agent(server.port, tmp_path) as (service, _):
                await until(lambda: service.machine.link.tries > 3)
                await other.close()
                await server.until(lambda: server.engine.state.nodes["n1"].identity == "machine-n1")
        answer = [line for line in capsys.readouterr().err.splitlines() if "our name is taken" in line]
        assert len(answer) == 1 and "give this agent another --name" in answer[0]


async def test_a_server_that_stops_answering_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        gateway_server(lease_ms=300, lease_margin_ms=60_000) as server,
        agent(server.port, tmp_path) as (service, _),
    ):
        session = await until(lambda: service.actor.session)
        monkeypatch.setattr(server.gateway, "_sign", lambda stream, beat: True)
        monkeypatch.setattr(server.gateway, "_beat", lambda stream, beat: None)
        await until(lambda: service.actor.session not in (0, session))


async def test_a_lost_delta_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless) as (service, driver):
        await server.until(lambda: len(server.gateway.machine.sessions) == 1)
        received = service.actor.answered
        lost: list[Answer] = []

        def lose_first(answer: Answer, now: int) -> list[Action]:
            if answer.generation and not lost:
                lost.append(answer)
                return []
            return received(answer, now)

        monkeypatch.setattr(service.actor, "answered", lose_first)
        await server.submit(name="one")
        await until(lambda: lost)
        await server.submit(name="two")
        await server.until(lambda: server.states() == ["running"] * 2)
        assert len(driver.did("start")) == 2


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_asked_to_stop_with_nothing_running_it_says_goodbye(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path) as (service, _):
        await server.until(lambda: len(server.gateway.machine.sessions) == 1)
        service.stop()
        await server.until(lambda: server.engine.state.nodes["n1"].status == "stopped")
        name, last = server.nodes[-1]
        assert (name, last.state, last.reason) == ("n1", "stopped", NodeLeft())


async def test_the_last_reports_go_out_before_the_goodbye(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless) as (service, driver):
        await server.submit(retries=0)
        await server.until(lambda: server.states() == ["running"])
        for id in list(driver.rules.live):
            driver.stop(id, 1_000, StopReason.SHUTDOWN)
        service.stop()
        await server.until(lambda: server.engine.state.nodes["n1"].status == "stopped")
        assert server.states() == ["failed"] and server.instance().reason == RetriesExhausted(StoppedByNode("n1"), 0)


async def test_asked_to_stop_while_work_runs_it_leaves_without_a_goodbye(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless) as (service, _):
        await server.submit()
        await server.until(lambda: server.states() == ["running"])
        service.stop()
        await server.until(lambda: server.engine.state.nodes["n1"].status == "suspect")
        assert server.states() == ["running"]


# --- odd cases --------------------------------------------------------------------------------------------------------


async def test_more_attempts_than_a_node_can_hold_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_machine, "ATTEMPTS_MAX", 2)
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless) as (_, driver):
        await server.submit(count=3, retries={"max": 0})
        await server.until(lambda: sorted(server.states()) == ["failed", "running", "running"])
        assert len(driver.did("start")) == 2


async def test_an_unknown_run_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path) as (service, driver):
        service.reported(KnownRuns(0, 0, [KnownRun("stray", "no note of ours", "running", 0)]))
        assert ("stray", 0, StopReason.UNKNOWN, "") in driver.did("stop")


async def test_an_order_the_driver_refuses_goes_elsewhere(tmp_path: Path) -> None:
    class Closing(PacedDriver):
        def start(self, run: RunRequest) -> None:
            self.orders.append(("start", run.id))
            self._arrange(0)
            self._out.append(StartRefused("the keeper is shutting down", run.id, Order.START, 0, Refusal.CLOSING))

    async with gateway_server() as server:
        async with agent(server.port, tmp_path, driver=Closing(endless)):
            await server.submit(retries={"max": 0})
            await server.until(lambda: server.states() == ["failed"])
            assert server.instance().reason == RetriesExhausted(StoppedByNode("n1"), 0)


async def test_full_work_directories_of_forgotten_runs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_service, "SWEEP_S", 0.02)
    (tmp_path / "work" / "123" / "deep").mkdir(parents=True)
    (tmp_path / "work" / "123" / "deep" / "file").write_text("left")
    (tmp_path / "work" / "notes").mkdir()
    async with gateway_server() as server, agent(server.port, tmp_path, script=endless) as (_, driver):
        await server.submit()
        await server.until(lambda: server.states() == ["running"])
        (token,) = (run for (run,) in driver.did("start"))
        os.makedirs(tmp_path / "work" / token)
        await until(lambda: not (tmp_path / "work" / "123").exists())
        assert sorted(os.listdir(tmp_path / "work")) == sorted([token, "notes"])


async def test_news_of_one_moment_share_a_frame(tmp_path: Path) -> None:
    beats: list[Beat] = []
    async with gateway_server() as server, agent(server.port, tmp_path, resources={"cpu": 50_000}) as (service, _):
        await server.until(lambda: len(server.gateway.machine.sessions) == 1)
        log_line = service.actor.beat

        def remember(*args: object, **fields: object) -> Beat:
            beats.append(log_line(*args, **fields))  # type: ignore[arg-type]
            return beats[-1]

        service.actor.beat = remember  # type: ignore[method-assign]
        await server.submit(count=50)
        await server.until(lambda: server.states() == ["succeeded"] * 50)
    assert sum(len(beat.reports) for beat in beats) >= 50
    assert len(beats) <= 10, [len(beat.reports) for beat in beats]


async def test_a_hello_may_hold_many_attempts(tmp_path: Path) -> None:
    async with gateway_server(lease_ms=60_000) as server:
        driver = PacedDriver(endless)
        offer = {"cpu": 1_000_000}
        async with agent(server.port, tmp_path, driver=driver, resources=offer):
            await server.submit(count=1_000)
            await server.until(lambda: server.states() == ["running"] * 1_000)
        async with agent(server.port, tmp_path, driver=driver, resources=offer) as (service, _):
            await server.until(lambda: len(server.gateway.machine.sessions) == 1)
            await until(lambda: service.actor.session)
            assert server.states() == ["running"] * 1_000
            assert len(driver.did("start")) == 1_000
