"""Runs in containers: the contract of the process driver on real engines, and what only containers have."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from roost_lab.components.docker import IMAGE

from roost.drivers.container.engine import find_engine, remove_orphans
from roost.ports.driver import Ended, RunRequest, StartRefused, StepBegan, StopReason
from tests.components.docker import KINDS, own_engine, shared_engine
from tests.drivers.container_bench import ContainerBench
from tests.drivers.test_process import CASES, Case, plain, run_of
from tests.keeper.keeper_harness import KeeperHarness, alive, now_ms

#: Not here: times so short that a container has not begun by then, and programs that are missing.
CONTRACT = (
    "ends well", "fails", "dies", "steps", "one failure that is ignored", "takes too long", "is stopped",
    "is stopped and says so", "is stopped and does not listen", "is stopped at once", "has no lease", "its lease ends",
    "it is not leased", "its lease is taken back while it stops", "is ordered twice",
)  # fmt: skip
MAIN = ("ends well", "fails", "steps", "is stopped and says so", "is stopped and does not listen")
BOTH = [(kind, name) for kind in KINDS for name in (CONTRACT if kind == "docker" else MAIN)]


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ContainerBench]:
    made = ContainerBench(shared_engine(request.param), KeeperHarness(tmp_path))
    made.harness.keeper()
    await made.connect()
    yield made
    made.close()


docker_only = pytest.mark.parametrize("bench", ["docker"], indirect=True)


def contained(case: Case, bench: ContainerBench) -> RunRequest:
    plain_run = run_of(case, bench.harness.work)
    made = bench.request("1", *[step.argv for step in plain_run.steps])
    assert made.container is not None
    container = msgspec.structs.replace(made.container, create=made.container.create)
    return msgspec.structs.replace(plain_run, container=container)


def outcome(event: Any) -> object:
    """As of a process. What dies by a signal that was not passed on has an exit code of 128 and more."""
    if isinstance(event, Ended) and event.cause == "exited" and event.code and event.code > 128:
        event = msgspec.structs.replace(event, code=None, signal=event.code - 128)
    return plain(event)


@pytest.mark.parametrize("bench, name", BOTH, indirect=["bench"])
async def test_the_contract_of_drivers(bench: ContainerBench, name: str) -> None:
    case = CASES[name]
    request = contained(case, bench)
    begun = now_ms()
    (bench.harness.work / "a").mkdir(parents=True)
    request.container.create["HostConfig"]["Mounts"] = [bench.mount("a")]  # type: ignore[union-attr]
    bench.driver.lease(begun + case.lease_ms if case.lease_ms else 0)
    bench.driver.start(request)
    if case.orders and name != "is ordered twice":
        await bench.writes("a", b"ready")
    for order in case.orders.values():
        order(bench.driver, now_ms())
    await bench.until(lambda: len(bench.events) >= len(case.expected))
    assert [outcome(event) for event in bench.events] == case.expected, bench.events
    assert bench.containers() == [], "a run is over when its container is gone"


async def test_output_is_exact_and_apart(bench: ContainerBench) -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' x; printf '\\377\\0end' >&2"
    bench.start("1", script, stderr=str(bench.harness.work / "1.err"))
    ended = await bench.ended("1")
    assert (ended.code, ended.log_size, ended.stderr_size) == (0, 300_000, 5)
    assert bench.harness.log("1") == b"x" * 300_000
    assert (bench.harness.work / "1.err").read_bytes() == b"\xff\0end"


async def test_steps_share_a_container_that_nothing_outlives(bench: ContainerBench) -> None:
    bench.start("1", "echo here > /tmp/f; sleep 1000 & exit 0", "cat /tmp/f; exit 3")
    ended = await bench.ended("1")
    assert (ended.code, ended.step, ended.codes) == (3, 1, [0, 3])
    assert bench.harness.log("1") == b"here\n"
    assert [event.step for event in bench.events if isinstance(event, StepBegan)] == [0, 1]
    assert bench.containers() == []


async def test_what_cannot_be_started_says_why(bench: ContainerBench) -> None:
    bench.start("1", ["/no/such/program"], config={"Init": False})
    ended = await bench.ended("1")
    assert (ended.cause, ended.code) == ("error", None)
    assert "no such file" in ended.error
    assert bench.containers() == []


@docker_only
async def test_running_out_of_memory_is_distinguished(bench: ContainerBench) -> None:
    limit = {"Memory": 32 << 20, "MemorySwap": 32 << 20}
    bench.start("1", "a=x; while :; do a=$a$a; done", config=limit)
    ended = await bench.ended("1")
    assert (ended.oom, ended.signal, ended.code) == (True, signal.SIGKILL, None)


async def test_a_container_does_not_outlive_its_shim(bench: ContainerBench) -> None:
    bench.start("1", "echo ready; sleep 1000")
    await bench.writes("1", b"ready")
    os.kill(bench.shim(), signal.SIGKILL)
    ended = await bench.ended("1")
    assert (ended.cause, ended.signal) == ("exited", signal.SIGKILL)
    assert bench.containers() == []


async def test_the_lease_ends_a_container_whose_shim_and_agent_hang(bench: ContainerBench) -> None:
    bench.driver.lease(now_ms() + 60_000)
    bench.start("1", "trap '' TERM; echo ready; sleep 1000", leased=True)
    await bench.writes("1", b"ready")
    os.kill(bench.shim(), signal.SIGSTOP)
    bench.driver.lease(now_ms() + 200)
    bench.driver.close()  # nothing of the agent is heard any longer
    await bench.until(lambda: bench.containers() == [])
    while (ended := (await bench.connect()).runs[0].ended) is None:
        bench.driver.close()
    assert ended.cause == "lease"


@docker_only
async def test_a_later_agent_finds_its_containers(bench: ContainerBench) -> None:
    bench.start("1", "echo ready; while [ ! -e /roost/go ]; do sleep 0.05; done; echo went on")
    await bench.writes("1", b"ready")
    bench.driver.close()
    (known,) = (await bench.connect()).runs
    assert (known.id, known.state) == ("1", "running")
    (bench.harness.work / "1" / "go").touch()
    assert (await bench.ended("1")).code == 0
    assert bench.harness.log("1") == b"ready\nwent on\n"


@docker_only
async def test_a_keeper_that_dies_takes_its_containers_along(bench: ContainerBench) -> None:
    """Its successor kills what ran in them; an agent removes what is left, and no container of others."""
    engine = find_engine([bench.engine.socket])
    assert engine is not None
    bench.start("1", "echo $$; exec sleep 1000")
    await bench.writes("1", b"\n")
    info: Any = bench.engine.client.call("GET", f"/containers/{bench.name('1')}/json")
    foreign: Any = bench.engine.client.call(
        "POST", f"/containers/create?name={bench.node}-foreign", {"Image": IMAGE, "Cmd": ["true"]}
    )
    bench.harness.keepers[-1].kill()
    bench.harness.keepers[-1].wait()
    bench.harness.keeper()
    assert not alive(info["State"]["Pid"])
    assert await asyncio.to_thread(remove_orphans, engine, bench.node, lambda run: run == "1") == 0
    assert await asyncio.to_thread(remove_orphans, engine, bench.node, lambda run: False) == 1
    assert bench.containers() == [f"{bench.node}-foreign"]
    bench.engine.client.call("DELETE", f"/containers/{foreign['Id']}")


async def test_an_engine_that_dies_does_not_save_a_container_from_its_end(tmp_path: Path) -> None:
    engine = own_engine("docker", flags=("--live-restore",))
    bench = ContainerBench(engine, KeeperHarness(tmp_path))
    try:
        engine.start().import_image()
        bench.harness.keeper()
        await bench.connect()
        bench.start("1", "trap '' TERM; echo ready; sleep 1000")
        await bench.writes("1", b"ready")
        info: Any = engine.client.call("GET", f"/containers/{bench.name('1')}/json")
        engine.kill()
        assert alive(info["State"]["Pid"]), "it lives on without its engine"
        bench.driver.stop("1", 0, StopReason.ORDERED)
        assert (await bench.ended("1")).cause == "stopped"
        assert not alive(info["State"]["Pid"])
        assert "is not removed" in bench.harness.errors.read_text()
        engine.start()
    finally:
        bench.close()
        engine.stop()


@docker_only
async def test_an_order_that_is_wrong_is_refused(bench: ContainerBench) -> None:
    request = bench.request("1", "true")
    assert request.container is not None
    for number, wrong in enumerate(({"name": "../x"}, {"socket": "relative"}, {"socket": ""})):
        container = msgspec.structs.replace(request.container, **wrong)
        bench.driver.start(msgspec.structs.replace(request, container=container))
        await bench.until(lambda count=number: len(bench.events) > count)
    assert all(isinstance(event, StartRefused) and "container." in event.error for event in bench.events)


async def test_what_a_container_used_is_reported_and_not_what_its_shim_did(bench: ContainerBench) -> None:
    spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
    bench.start("0", "true")  # the first one of an engine takes long to begin
    await bench.ended("0")
    scripts = {
        "1": [f"sleep 2; {spin}; ({spin}) & wait; head -c 30000000 /dev/zero | tail -c 30000000 >/dev/null"],
        "2": ["sleep 2"], "3": [spin, "sleep 1", "true"],
    }  # fmt: skip
    for run, commands in scripts.items():
        bench.start(run, *commands)
    used, little, steps = [(await bench.ended(run)).usage for run in scripts]
    assert used.cpu_ms >= 100 and 25 << 20 < used.memory_max < 200 << 20
    assert 0 <= little.cpu_ms < used.cpu_ms / 2 and 0 < little.memory_max < used.memory_max
    assert 50 <= steps.cpu_ms


async def test_a_container_that_ends_at_once_has_no_usage_of_others(bench: ContainerBench) -> None:
    bench.start("1", "true")
    usage = (await bench.ended("1")).usage
    assert usage is None or (usage.memory_max or 0) < 1 << 30
