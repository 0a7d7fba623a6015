"""Watch: a ring that is encoded on demand, readers at their own pace."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from roost.core.state.state import State
from roost.model.reasons.attempts import StartFailed
from roost.model.records.instance import Instance
from roost.model.records.workload import Ask, Policy, Workload
from roost.ports.store import Change
from roost.server.auth.principal import ALL, Access, Redactor
from roost.server.feed import change_log
from roost.server.feed.change_log import EVERYTHING, ChangeFilter, Watch
from roost.server.http.api import sse
from roost.server.http.api.answers import change_frames

LIFE = 77


def workload(name: str, **fields: Any) -> Workload:
    return Workload("default", name, Policy("job", Ask()), b"\x80", 1_000, 1, **fields)


def commit(ring: Watch, state: State, *records: Workload | Instance) -> None:
    """A commit of these records."""
    state.revision += 1
    encode = msgspec.msgpack.encode
    kinds = {Workload: "workload", Instance: "instance"}
    ring.publish(state, [Change(kinds[type(record)], record.key, encode(record)) for record in records])


def begun(**bounds: int) -> tuple[Watch, State]:
    ring, state = Watch(**bounds), State()
    state.meta.first_serial = LIFE
    state.revision = 100
    ring.begin(LIFE, 100)
    return ring, state


def follow(ring: Watch, since: str = "", wanted: ChangeFilter = EVERYTHING) -> AsyncGenerator[bytes, None]:
    """The stream as the REST API sends it."""
    return change_frames(ring.follow(since, wanted), wanted.redactor or Redactor(ALL))


async def reported(reader: AsyncGenerator[bytes, None], number: int) -> list[str]:
    """The next keys that are reported."""
    keys: list[str] = []
    async with asyncio.timeout(5):
        while len(keys) < number:
            for block in (await anext(reader)).decode().split("\n\n"):
                fields = dict(line.split(": ", 1) for line in block.splitlines())
                if fields.get("event") == "change":
                    keys.append(json.loads(fields["data"])["key"])
                elif "event" in fields:
                    keys.append(fields["event"])
    return keys


async def test_nothing_is_encoded_until_a_reader_reads_and_then_once_for_all() -> None:
    ring, state = begun()
    for number in range(10):
        commit(ring, state, workload(f"w{number}"))
    assert all(not commit.frames for commit in ring._commits)
    first, second = follow(ring, "100"), follow(ring, "100")
    keys = [f"default/w{number}" for number in range(10)]
    assert await reported(first, 10) == keys
    frames = [commit.frames[0] for commit in ring._commits]
    assert await reported(second, 10) == keys
    assert all(commit.frames[0] is frame for commit, frame in zip(ring._commits, frames, strict=True))


async def test_what_is_reported_is_as_it_was_at_its_revision() -> None:
    ring, state = begun()
    record = workload("w", count=2)
    progress = state.progress_of(record)
    progress.placed_count, progress.counts = 1, {"running": 1}
    commit(ring, state, record)
    progress.counts["running"], progress.counts["succeeded"] = 0, 1
    record.finished_ms = 5
    reader = follow(ring, "100")
    await anext(reader)
    change = json.loads((await anext(reader)).decode().split("data: ")[1].split("\n")[0])
    assert change["object"]["state"] == "running" and change["object"]["counts"] == {"running": 1, "queued": 1}
    assert change["object"]["finished_ms"] is None


async def test_a_reader_can_come_back_at_every_revision() -> None:
    ring, state = begun()
    for number in range(20):
        commit(ring, state, workload(f"w{number}"))
    for position in range(20):
        reader = follow(ring, f"{100 + position}-{LIFE}")
        assert await reported(reader, 20 - position) == [f"default/w{number}" for number in range(position, 20)]


async def test_a_reader_that_has_seen_part_of_what_a_standby_followed_at_once_lists_again() -> None:
    ring, state = begun()
    state.revision += 2  # the standby gets three commits as one
    commit(ring, state, workload("w1"), workload("w2"), workload("w3"))
    assert await reported(follow(ring, f"100-{LIFE}"), 3) == ["default/w1", "default/w2", "default/w3"]
    for seen in (101, 102):
        assert ring.position(f"{seen}-{LIFE}") is None
        reader = follow(ring, f"{seen}-{LIFE}")
        assert await reported(reader, 1) == ["reset"]
    commit(ring, state, workload("w4"))
    assert await reported(reader, 1) == ["default/w4"]
    assert await reported(follow(ring, f"103-{LIFE}"), 1) == ["default/w4"]


async def test_a_reader_that_falls_off_the_ring_learns_it_and_goes_on() -> None:
    ring, state = begun(changes_max=10)
    reader = follow(ring)
    await anext(reader)
    commit(ring, state, workload("seen"))
    assert await reported(reader, 1) == ["default/seen"]
    for number in range(50):
        commit(ring, state, workload(f"w{number}"))
    assert await reported(reader, 1) == ["reset"]
    commit(ring, state, workload("after"))
    assert await reported(reader, 1) == ["default/after"]


async def test_the_ring_is_bounded_by_number_and_by_size() -> None:
    ring, state = begun(changes_max=100)
    for number in range(1_000):
        commit(ring, state, workload(f"w{number}"))
    assert 100 <= len(ring._commits) <= 200
    ring, state = begun(bytes_max=10_000)
    for number in range(1_000):
        commit(ring, state, workload(f"w{number}", reason=StartFailed("x" * 1_000)))
    assert len(ring._commits) <= 20
    reader = follow(ring, str(state.revision - 3))
    assert await reported(reader, 3) == ["default/w997", "default/w998", "default/w999"]


async def test_a_huge_commit_is_reported_in_pieces_and_numbered_at_its_end() -> None:
    ring, state = begun()
    size = change_log.BURST_MAX * 2 + 1
    commit(ring, state, *(Instance("default/w", index) for index in range(size)))
    reader = follow(ring, "100")
    await anext(reader)
    pieces = [await anext(reader) for _ in range(3)]
    assert [b"id: " in piece for piece in pieces] == [False, False, True]
    assert sum(piece.count(b"event: change") for piece in pieces) == size


async def test_a_reader_that_wants_little_still_learns_where_to_come_back_to() -> None:
    ring, state = begun()
    reader = follow(ring, "", ChangeFilter(frozenset({"node"})))
    assert await anext(reader) == sse.mark(f"100-{LIFE}")
    for number in range(change_log.MARK_EVERY):
        commit(ring, state, workload(f"w{number}"))
    assert await anext(reader) == sse.mark(f"{100 + change_log.MARK_EVERY}-{LIFE}")


async def test_one_workload_is_not_taken_for_another_with_a_longer_name() -> None:
    ring, state = begun()
    commit(ring, state, workload("web-1"), workload("web"), Instance("default/web-1", 0), Instance("default/web", 1))
    reader = follow(ring, "100", ChangeFilter(workload="default/web"))
    assert await reported(reader, 2) == ["default/web", "default/web.1"]


async def test_workloads_whose_names_begin_alike_can_be_followed_together() -> None:
    ring, state = begun()
    commit(ring, state, workload("ci-1-a"), workload("ci-2-a"), Instance("default/ci-1-a", 0), workload("ci-1-b"))
    reader = follow(ring, "100", ChangeFilter(prefix="default/ci-1-"))
    assert await reported(reader, 3) == ["default/ci-1-a", "default/ci-1-a.0", "default/ci-1-b"]
    commit(ring, state, workload("ci-2-b"), workload("ci-1-c"))
    assert await reported(reader, 1) == ["default/ci-1-c"]


async def test_of_a_reservation_that_goes_it_is_known_whose_it_was() -> None:
    ring, state = begun()
    ring.begin(LIFE, 100, {"mine": "web", "foreign": "db"})
    state.revision += 1
    ring.publish(state, [Change("reservation", name, None) for name in ("foreign", "mine", "unknown")])
    kinds = frozenset({"reservation"})
    assert await reported(
        follow(ring, "100", ChangeFilter(kinds, redactor=Redactor(Access({"web": "viewer"})))), 1
    ) == ["mine"]
    assert await reported(follow(ring, "100", ChangeFilter(kinds)), 3) == ["foreign", "mine", "unknown"]


async def test_when_the_state_is_loaded_anew_all_readers_list_again() -> None:
    ring, state = begun()
    reader = follow(ring)
    await anext(reader)
    following = asyncio.ensure_future(anext(reader))
    ring.forget()
    ring.begin(LIFE, 105)
    assert b"event: reset" in await following


async def test_waiting_for_one_record_ends_with_its_change_only() -> None:
    ring, state = begun()
    mine, other = ring.changed("default/mine"), ring.changed("default/other")
    commit(ring, state, workload("mine"))
    await asyncio.wait_for(mine, 1)
    assert not other.done()
    other.cancel()
    await asyncio.sleep(0)
    assert not ring._of_records
    last = ring.changed("default/mine")
    ring.close()
    await asyncio.wait_for(last, 1)
    assert ring.changed("default/mine").done()


async def test_a_silent_stream_gives_signs_of_life_and_lets_go_of_its_source() -> None:
    ring, _ = begun()
    stream = sse.kept_alive(follow(ring), pulse_s=0.01)
    assert (await anext(stream)).startswith(b"id: ")
    assert [await anext(stream) for _ in range(3)] == [sse.PULSE] * 3
    assert ring.subscribers == 1
    await stream.aclose()
    assert ring.subscribers == 0


class CountedWatch(Watch):
    """It counts how often readers look."""

    looks = 0

    def after(self, position: int) -> Any:
        self.looks += 1
        return super().after(position)


async def test_readers_of_other_workloads_are_not_woken_by_a_commit() -> None:
    ring, state = CountedWatch(), State()
    state.meta.first_serial, state.revision = LIFE, 100
    ring.begin(LIFE, 100)
    filters = [ChangeFilter(workload=f"default/w{number}") for number in range(50)]
    filters += [ChangeFilter(prefix=f"default/p{number}-") for number in range(50)]
    readers = [follow(ring, "100", wanted) for wanted in filters]
    reading = [asyncio.ensure_future(reported(reader, 1)) for reader in readers]
    await asyncio.sleep(0.01)
    ring.looks = 0
    commit(ring, state, workload("w7"), workload("p7-a"), workload("w77"))
    assert await reading[7] == ["default/w7"] and await reading[57] == ["default/p7-a"]
    await asyncio.sleep(0.01)
    assert ring.looks <= 4  # each of the two looks, and looks once more before it waits
    ring.close()
    results = await asyncio.gather(*reading, return_exceptions=True)
    assert sum(isinstance(result, list) for result in results) == 2


async def test_a_reader_of_one_workload_misses_nothing_when_the_ring_has_long_moved_on() -> None:
    ring, state = begun(changes_max=20)
    reader = follow(ring, "100", ChangeFilter(workload="default/mine"))
    reading = asyncio.ensure_future(reported(reader, 3))
    await asyncio.sleep(0)
    for name in ("mine", *["other"] * 100, "mine", *["other"] * 100):
        commit(ring, state, workload(name))
        await asyncio.sleep(0)
    commit(ring, state, Instance("default/mine", 0, "running"))
    assert await reading == ["default/mine", "default/mine", "default/mine.0"]  # and no reset


async def test_a_reader_of_one_workload_hears_its_position_now_and_then(monkeypatch: Any) -> None:
    monkeypatch.setattr(change_log, "MARK_EVERY", 10)
    ring, state = begun()
    reader = follow(ring, "100", ChangeFilter(workload="default/mine"))
    assert (await anext(reader)).decode().startswith("id: 100-")
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    for _ in range(20):
        commit(ring, state, workload("other"))
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert (await waiting).decode().startswith("id: 1")
