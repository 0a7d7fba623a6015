"""Hooks under stress: dead, slow and hanging receivers cost no other receiver anything, and memory is bounded."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from roost.core.state.state import State
from roost.model.reasons.attempts import ExitCode
from roost.model.records.transition import InstanceTransition, InstanceTransitioned
from roost.model.records.webhook import WebhookEvent, WebhookPosition, read_command
from roost.model.states import InstanceState
from roost.ports.store import Change
from roost.server.engine.engine import Clock
from roost.server.webhooks.channel import Channel, RetryTiming, WebhookQueue
from roost.server.webhooks.command import Commands
from roost.server.webhooks.destinations import Destinations
from roost.server.webhooks.dispatcher import BACKLOG_MAX, ROOM_MAX
from roost.server.webhooks.http import Poster, PostOutcome
from tests.server.inprocess_server import Run, inprocess_server
from tests.server.receiver import equip, receiver, set_hook, telling

EVENTS = 100_000
MEMORY_MAX = 32 << 20  # 75,000 more events would be twice that


def memory_bytes() -> int:
    """What this process takes of the machine's memory."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4_096


def dead_port() -> int:
    """A closed port."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        return int(unheard.getsockname()[1])


def event(number: int, key: str = "") -> WebhookEvent:
    return WebhookEvent(
        id=str(number), event="instance.failed", at_ms=number, revision=number, kind="instance",
        key=key or f"p/w.{number}", project="p", workload="w", index=number, state="failed", ended=True,
        message=f"exit code {number}",
    )  # fmt: skip


def ends(first: int, number: int, revision: int) -> list[InstanceTransitioned]:
    """Instances that have ended, as a commit has them."""
    line = InstanceTransition(
        2, InstanceState.RUNNING, InstanceState.FAILED, ExitCode(1), revision, 1, "n1", 1, version=1
    )
    return [InstanceTransitioned(f"p/w.{index}", line) for index in range(first, first + number)]


async def test_a_dead_host_with_100_000_events_is_bounded_and_others_are_still_served() -> None:
    async with inprocess_server(lease_ms=600_000) as made, receiver() as alive:
        equip(made, timing=RetryTiming())
        async with telling(made):
            await set_hook(made, "p/dead", f"http://127.0.0.1:{dead_port()}/")
            await set_hook(made, "other/alive", alive.url)
            await alive.until(lambda: len(made.hooks.channels) == 2)
            state, before = made.engine.state, 0
            for first in range(0, EVENTS, 1_000):
                state.revision += 1  # no other commit comes meanwhile: the engine has nothing to do
                made.hooks.take(state, [], ends(first, 1_000, state.revision))
                await asyncio.sleep(0)
                if first == EVENTS // 4:
                    before = memory_bytes()
            await alive.until(lambda: made.hooks.channels["p/dead"].counts.dropped == EVENTS - ROOM_MAX)
            assert made.hooks.channels["p/dead"].waiting == ROOM_MAX
            assert memory_bytes() - before < MEMORY_MAX, "a quarter of them has taken all that is ever taken"
            await made.submit("job", project="other")
            await made.post("/v1/workloads/other/job/cancel", {})
            await alive.until(lambda: alive.reported)
            dead = made.hooks.channels["p/dead"].counts
            assert dead.failed and dead.failed < 20, "it is tried now and then, not for each event"


async def test_a_black_hole_and_a_slow_receiver_hold_up_no_other_receiver() -> None:
    async with inprocess_server() as made, receiver() as hole, receiver() as alive:
        equip(made, poster=Poster(Destinations(["127.0.0.0/8"]), try_s_max=0.2))
        hole.gate.clear()
        async with telling(made):
            await set_hook(made, "default/hole", hole.url)
            await set_hook(made, "default/alive", alive.url)
            for number in range(20):
                await made.submit(f"job-{number}")
                await made.post(f"/v1/workloads/default/job-{number}/cancel", {})
            await alive.until(lambda: len({event["key"] for event in alive.events()}) == 20)
            await alive.until(lambda: made.hooks.channels["default/hole"].counts.failed >= 2)
            assert "no answer within 0.2 s" in made.hooks.channels["default/hole"].counts.last_error
            hole.gate.set()
            await alive.until(lambda: made.hooks.channels["default/hole"].counts.delivered == 20)


async def test_more_than_is_kept_at_once_is_read_from_the_state() -> None:
    async with inprocess_server(lease_ms=600_000) as made, receiver() as there:
        await set_hook(made, "default/ends", there.url, events=["instance.succeeded"])
        agent = await made.agent("n1")
        await made.submit("job")
        (run,) = agent.orders(Run)
        await agent.starts(run)
        async with telling(made):
            await there.until(lambda: made.hooks.channels)
            many = ends(0, BACKLOG_MAX + 1, 1)

            class Flood:
                def take(self, state: State, *commit: Any) -> None:
                    made.hooks.take(state, *commit)
                    made.hooks.take(state, [], many)  # with it goes what was just handed over

            made.perform.hooks = Flood()  # type: ignore[assignment]
            await agent.ends(run)
            await there.until(lambda: there.events("instance.succeeded"))
            assert [event["key"] for event in there.events()] == ["default/job.0"]


async def test_what_ends_and_goes_in_one_step_is_reported() -> None:
    async with inprocess_server() as made, receiver() as there, telling(made):
        await set_hook(made, "p/ends", there.url)
        await there.until(lambda: made.hooks.channels)
        state = made.engine.state
        state.revision += 1
        made.hooks.take(state, [Change("instance", "p/w.7", None)], ends(7, 1, state.revision))
        await there.until(lambda: there.reported)
        assert there.events()[0]["key"] == "p/w.7"


async def test_a_receiver_gets_a_few_at_once_and_one_alone_once_it_does_not_answer() -> None:
    channel = Channel(
        "p/h", ("*",), "", WebhookPosition(0), 100, RetryTiming(first_ms=1, pause_ms_max=1), Clock().now_ms
    )
    gate, most, is_away = asyncio.Event(), [0, 0], False

    async def slow(event: WebhookEvent) -> PostOutcome:
        most[0] += 1
        most[1] = max(most)
        await gate.wait()
        most[0] -= 1
        return PostOutcome(not is_away, 0, "no receiver there", away=is_away)

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.001)

    for number in range(1, 21):
        channel.offer(event(number))
    running = asyncio.ensure_future(channel.run(slow, asyncio.Semaphore(64)))
    await until(lambda: most[0] == 4)
    gate.set()
    await until(lambda: not channel.waiting)
    assert most == [0, 4]
    is_away = True
    channel.offer(event(21))
    await until(lambda: channel.counts.failed > 0)
    gate.clear()
    for number in range(22, 42):
        channel.offer(event(number))
    await until(lambda: most[0] > 0)
    assert most[0] == 1
    gate.set()
    running.cancel()


async def test_what_is_not_taken_is_given_up_and_counted() -> None:
    now = [0]
    channel = Channel("p/h", ("*",), "", WebhookPosition(0), 10, RetryTiming(1, 1, tries_max=3), lambda: now[0])

    async def refuse(event: WebhookEvent) -> PostOutcome:
        now[0] += 10
        return PostOutcome(False, 500, "no")

    channel.offer(event(1))
    running = asyncio.ensure_future(channel.run(refuse, asyncio.Semaphore(1)))
    async with asyncio.timeout(10):
        while channel.waiting:
            await asyncio.sleep(0.001)
    running.cancel()
    assert (channel.counts.failed, channel.counts.given_up, channel.counts.delivered) == (3, 1, 0)
    assert channel.position(WebhookPosition(9, 9)) == WebhookPosition(9, 9), "what was given up is not reported again"


async def test_after_an_hour_without_an_answer_all_that_is_old_is_given_up() -> None:
    now = [0]
    channel = Channel("p/h", ("*",), "", WebhookPosition(0), 10, RetryTiming(), lambda: now[0])

    async def away(event: WebhookEvent) -> PostOutcome:
        now[0] += 3_600_001
        return PostOutcome(False, 0, "no receiver there", away=True)

    for number in range(1, 6):
        channel.offer(event(number))
    running = asyncio.ensure_future(channel.run(away, asyncio.Semaphore(1)))
    async with asyncio.timeout(10):
        while channel.waiting:
            await asyncio.sleep(0.001)
    running.cancel()
    assert channel.counts.given_up == 5 and channel.counts.failed <= 4


def test_a_queue_keeps_the_order_of_each_object_and_drops_the_oldest() -> None:
    queue = WebhookQueue(3)
    assert [queue.add(event(number, key), 0) for number, key in ((1, "a"), (2, "a"), (3, "b"))] == [0, 0, 0]
    first, second = queue.next(0), queue.next(0)
    assert first and second and (first.event.id, second.event.id) == ("1", "3")
    assert queue.next(0) is None, "2 waits for 1"
    assert queue.add(event(3, "b"), 0) == 0 and len(queue) == 3, "a pending event is not added again"
    assert queue.add(event(4, "c"), 0) == 1 and len(queue) == 3, "2 is the oldest that is not on its way"
    queue.again(first, 100)
    third = queue.next(0)
    assert third and third.event.id == "4" and queue.next(99) is None and queue.due_ms() == 100
    assert queue.floor() == WebhookPosition(0, 1)
    again = queue.next(100)
    assert again is first
    for delivery in (first, second, third):
        queue.settle(delivery)
    assert len(queue) == 0 and queue.floor() is None and queue.due_ms() is None


def test_a_time_that_was_set_for_one_that_is_gone_sends_nothing_twice() -> None:
    queue = WebhookQueue(2)
    queue.add(event(1, "a"), 0)
    first = queue.next(0)
    assert first is not None
    queue.again(first, 100)
    assert [queue.add(event(number, "a"), 0) for number in (2, 3)] == [0, 1], "the first had to go"
    second = queue.next(0)
    assert second is not None and second.event.id == "2"
    assert queue.next(100) is None, "3 waits for 2, whatever was due then"


async def test_a_workload_that_is_written_again_has_not_ended_again() -> None:
    async with inprocess_server() as made, receiver() as there, telling(made):
        await set_hook(made, "*/ends", there.url)
        await made.submit("job")
        await made.post("/v1/workloads/default/job/cancel", {})
        await there.until(lambda: there.events("workload.finished"))
        state = await made.engine.settled()
        state.revision += 1
        again = Change("workload", "default/job", msgspec.msgpack.encode(state.workloads["default/job"]))
        made.hooks.take(state, [again], ends(7, 1, state.revision))
        await there.until(lambda: there.events("instance.failed"))
        await there.until(lambda: not made.hooks.channels["*/ends"].waiting)
        assert len(there.events("workload.finished")) == 1


# commands


async def test_a_command_reads_the_event_and_little_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = read_command(f"note=cat > {out}; env > {out}.env; echo $ROOST_EVENT >> {out}.names", "hooks")
    async with inprocess_server() as made, receiver() as there:
        equip(made, command)
        async with telling(made):
            await there.until(lambda: made.hooks.channels)
            await made.submit("job")
            await made.post("/v1/workloads/default/job/cancel", {})
            await there.until(lambda: made.hooks.channels["*/command:note"].counts.delivered)
            answer = msgspec.json.decode(out.read_bytes())
            assert (answer["event"], answer["key"]) == ("workload.finished", "default/job")
            names = {line.partition("=")[0] for line in (tmp_path / "out.env").read_text().splitlines()}
            assert names <= {"PATH", "LANG", "LC_ALL", "TZ", "HOME", "PWD", "SHLVL", "_", "OLDPWD",
                             "ROOST_HOOK", "ROOST_EVENT", "ROOST_DELIVERY"}  # fmt: skip
            (shown,) = (await made.get("/v1/hooks"))["items"]
            assert shown["command"] is True and shown["project"] == "*" and str(out) not in str(shown)
            assert (await made.post("/v1/projects/*/hooks/command:note/test"))["ok"] is True


async def test_a_command_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    commands = Commands(run_s_max=0.5)
    hanging = read_command(f"hang=sleep 600 & echo $! > {pid}; yes | head -c 10000000; wait", "hooks")
    outcome = await commands.run(hanging, event(1))
    assert not outcome.ok and "has not ended within 0.5 s and was killed" in outcome.message
    child = int(pid.read_text())
    async with asyncio.timeout(10):
        while _lives(child):
            await asyncio.sleep(0.01)
    assert (await commands.run(read_command("x=exit 3", "hooks"), event(1)))[:3] == (False, 3, "it has ended with 3")
    commands.close()


async def test_a_server_that_stops_does_not_wait_for_a_command(tmp_path: Path) -> None:
    began = tmp_path / "began"
    commands = Commands(run_s_max=600)
    running = asyncio.ensure_future(commands.run(read_command(f"x=touch {began}; sleep 600", "hooks"), event(1)))
    async with asyncio.timeout(10):
        while not began.exists():
            await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        await asyncio.to_thread(commands.close)
        assert not (await running).ok
    assert not (await commands.run(read_command("x=true", "hooks"), event(1))).ok


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
