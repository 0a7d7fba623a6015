"""The history against a model: every revision can be shown as it was, whatever happened to the history meanwhile."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.core.invariants import differences
from roost.core.replica import follow, load, mirror, take_over
from roost.core.state.records import Settings
from roost.core.step import step
from roost.core.transitions import followed_transitions
from roost.model.errors import Invalid, NoService, NotFound
from roost.model.events import AttributedRequest, Cordon, Submit
from roost.model.records.opaque import By
from roost.ports.store import Snapshot
from roost.server.config import ServerConfig, check_config
from roost.server.engine.recording import records_of
from roost.server.history import service as front
from roost.server.history import writer
from roost.server.history.projection import HistoryCommit
from roost.server.history.queue import Mark, Scan
from roost.server.history.search import EventsWanted, Period, instances_of, lives_of, search_events, search_workloads
from tests.core.random_clusters import ACTION_LISTS, events_of, small_cluster
from tests.core.scene import wanted
from tests.server.recorded_history import RecordedHistory, recorded_history, until

JOB = {"name": "one", "command": "true", "resources": {"cpu": 1}}


async def events(made: RecordedHistory, **wanted: Any) -> list[Any]:
    found, _ = await made.history.read(search_events, EventsWanted(**wanted), 1_000, "")
    return found[::-1]


async def over(made: RecordedHistory, **wanted: Any) -> list[Any]:
    asked = {"project": "", "name": "", "state": "", "period": Period(), "limit": 100, "after": "", **wanted}
    return (await made.history.read(search_workloads, **asked))[0]


@given(ACTION_LISTS, st.data())
@settings(max_examples=25)
def test_every_revision_is_shown_as_it_was(actions: list[Any], data: st.DataObject) -> None:
    snapshot_every = data.draw(st.sampled_from([5, 50_000]), label="snapshot every")
    small = data.draw(st.booleans(), label="is small")
    asyncio.run(_live(actions, snapshot_every, 500 if small else 0))


async def _live(actions: list[Any], snapshot_every: int, small_records: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(writer, "SNAPSHOT_CHANGES_MIN", snapshot_every)
        patch.setattr(writer, "SNAPSHOT_SHARE", 0)
        patch.setattr(writer, "LINGER_S", 0.0)
        patch.setattr(front, "SMALL_RECORDS", small_records)
        async with recorded_history(Path(folder)) as made:
            if not small_records:
                await made.written()
            for kind, what in actions:
                made.happens(kind, what)
            await made.written()
            for revision in made.was:
                assert await made.differs(f"@{revision}", revision) == []


@given(ACTION_LISTS, st.integers(1, 40))
@settings(max_examples=25)
def test_whatever_is_missed_what_is_shown_is_right(actions: list[Any], waiting_max: int) -> None:
    asyncio.run(_live_in_haste(actions * 3, waiting_max))


async def _live_in_haste(actions: list[Any], waiting_max: int) -> None:
    """The writer scans the state while it changes, and again whenever it has fallen behind; nothing waits for it."""
    interval = sys.getswitchinterval()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(front, "SMALL_RECORDS", 0)
        patch.setattr(front, "QUEUE_CHANGES_MAX", waiting_max)
        patch.setattr(writer, "LINGER_S", 0.0)
        sys.setswitchinterval(1e-5)
        try:
            async with recorded_history(Path(folder)) as made:
                for kind, what in actions:
                    made.happens(kind, what)
                await made.written()
                shown = [revision for revision in made.was if await _is_known(made, revision)]
                assert made.state.revision in shown
                for revision in shown:
                    assert await made.differs(f"@{revision}", revision) == []
                lines = [
                    (event.revision, event.index, event.workload, event.what)
                    for event in await events(made, kind="instance")
                ]
                assert len(lines) == len(set(lines)), "nothing is reported twice"
        finally:
            sys.setswitchinterval(interval)


async def _is_known(made: RecordedHistory, revision: int) -> bool:
    try:
        await made.history.moment(f"@{revision}", made.state.now_ms)
    except NotFound:
        return False
    return True


def test_a_scan_is_corrected_only_by_commits_without_a_hole() -> None:
    found = Scan(1, {}, "")
    found.commits = [HistoryCommit(number, number, 0, (), 0, {}) for number in (1, 2, 5, 6)]
    assert [commit.number for commit in found.until(Mark(1, 6, 6, 0))] == [5, 6]
    assert found.until(Mark(1, 7, 7, 0)) == []


async def test_what_is_reported_twice_is_written_once(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        done = step(made.state, [Submit(1, (wanted(JOB),))], made.state.now_ms + 10)
        for _ in range(3):
            made.history.take(made.state, done.changes, done.transitions)
            await made.written()
        assert [event.what for event in await events(made, workload="one", project="default")] == [
            "submitted", "queued", "placed"
        ]  # fmt: skip
        assert await made.history.read(lambda database: database.execute("SELECT count(*) FROM batches").get) == 1


async def test_a_time_means_the_last_commit_before_it(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        made.happens("run", 0)
        made.steps([], wait_ms=60_000)
        made.happens("end", 0)
        await made.written()
        revisions = sorted(made.was)
        started = made.times[revisions[2]]
        for late_ms in (0, 1, 50_000):
            moment = await made.history.moment(f"{made.state.now_ms - started - late_ms}ms", made.state.now_ms)
            assert (moment.revision, moment.at_ms) == (revisions[2], started)
        assert (await made.history.moment("0s", made.state.now_ms)).revision == made.state.revision
        with pytest.raises(NotFound, match="begins at 1970-01-01T00:16:40.000"):
            await made.history.moment("10d", made.state.now_ms)
        with pytest.raises(NotFound, match="begins at 1970-01-01T00:16:40"):
            await made.history.moment("@9999", made.state.now_ms)
        for nonsense in ("yesterday", "@x", "@1-2-3", "2026-01-01T00:00", ""):
            with pytest.raises(Invalid, match="a time is like"):
                await made.history.moment(nonsense, made.state.now_ms)


async def test_what_happened_is_reported_once_and_in_order(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        made.happens("run", 0)
        made.happens("end", 0)
        made.happens("drain", "b")
        await made.written()
        reported_of = [
            (event.kind, event.what, event.node) for event in await events(made, project="default", workload="one")
        ]
        assert reported_of == [
            ("workload", "submitted", ""),
            ("instance", "queued", ""),
            ("instance", "placed", "a"),
            ("instance", "running", "a"),
            ("instance", "succeeded", "a"),
            ("workload", "succeeded", ""),
        ]
        assert [event.what for event in await events(made, node="b")] == ["ready", "drained"]
        (placed,) = await events(made, what="placed")
        assert placed.message == "on a by least_loaded"
        assert [event.what for event in await events(made, period=Period(placed.at_ms, placed.at_ms + 1))] == [
            "submitted", "queued", "placed"
        ]  # fmt: skip


async def test_a_new_version_is_reported_with_its_workload_and_a_cordon_with_its_node(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        service = {"name": "web", "kind": "service", "command": "serve"}
        made.happens("submit", service)
        made.happens("submit", {**service, "command": "serve better"})
        made.steps([AttributedRequest(By("ann"), Cordon(1, "b"))])
        await made.written()
        (changed,) = await events(made, what="changed")
        assert (changed.kind, changed.project, changed.workload) == ("workload", "default", "web")
        assert changed.message == "version 1 has a successor"
        assert await events(made, kind="version") == []
        assert [(event.kind, event.what, event.who) for event in await events(made, node="b")][1:] == [
            ("node", "cordoned", ""), ("audit", "cordon", "ann")
        ]  # fmt: skip


async def test_finished_workloads_can_be_searched_long_after_it_was_swept(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        for number in range(3):
            made.happens("submit", {**JOB, "count": 2, "retention": "1h"})
            made.happens("run", 0)
            made.happens("end", 0)
            made.happens("end", 0) if number else made.happens("cancel", "one")
        made.happens("submit", {**JOB, "name": "other", "retention": 0})
        made.happens("end", 0)
        made.happens("end", 0)
        made.happens("wait", 3_600)
        made.happens("wait", 3_600)
        await made.written()
        assert not any(workload.finished_ms for workload in made.state.workloads.values()), "all are swept"
        assert [(resource.name, resource.state) for resource in await over(made)][0] == ("other", "succeeded")
        assert {resource.name for resource in await over(made, name="on")} == {"one"}
        assert await over(made, name="none") == [] and await over(made, state="expired") == []
        (other,) = await over(made, name="other")
        assert (other.exit_code, other.attempts, other.counts) == (0, 1, {"succeeded": 1})
        lives, following = await made.history.read(lives_of, "default", "one", 10, 1 << 62)
        assert following is None and {over_detail.document["command"] for over_detail in lives} == {"true"}
        found, _ = await made.history.read(instances_of, "default", "one", lives[-1].serial, "", 10, -1)
        assert [
            (instance_detail.index, instance_detail.story[-1].state)
            for instance_detail in found
            if instance_detail.story
        ][0] == (0, "succeeded")


async def test_a_workload_that_is_not_kept_arrives_although_no_store_saw_its_end(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", {**JOB, "retention": 0})
        made.happens("run", 0)
        made.happens("end", 0)
        assert not made.state.workloads, "it was swept in the step in which it ended"
        await made.written()
        (found,) = await over(made)
        assert (found.name, found.state, found.exit_code, found.node) == ("one", "succeeded", 0, "a")
        (instance,), _ = await made.history.read(instances_of, "default", "one", found.serial, "", 10, -1)
        assert [line.state for line in instance.story] == ["queued", "placed", "running", "succeeded"]


async def test_what_runs_again_is_not_over(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        made.happens("cancel", "one")
        made.happens("end", 0)
        await made.written()
        assert [resource.state for resource in await over(made)] == ["cancelled"]
        made.happens("retry", "one")
        await made.written()
        assert await over(made) == []
        made.happens("end", 0)
        await made.written()
        (again,) = await over(made)
        assert (again.state, again.attempts) == ("succeeded", 2)


async def test_projects_that_may_not_be_seen_are_not_found(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", {**JOB, "retention": 0})
        made.happens("end", 0)
        await made.written()
        assert len(await over(made, projects=frozenset({"default"}))) == 1
        assert await over(made, projects=frozenset({"web"})) == []
        assert await over(made, projects=frozenset()) == []
        found, _ = await made.history.read(search_events, EventsWanted(), 100, "", frozenset({"web"}))
        assert found == []
        with pytest.raises(NotFound):
            await made.history.read(lives_of, "default", "one", 10, 1 << 62, frozenset({"web"}))


async def test_pages_have_everything_once(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        for number in range(7):
            made.happens("submit", {**JOB, "name": f"job-{number}"})
            made.happens("end", 0)
        await made.written()
        seen, after = [], ""
        while after is not None:
            page, after = await made.history.read(search_workloads, "", "job", "", Period(), 2, after)
            seen += [over_view.name for over_view in page]
        assert seen == [f"job-{number}" for number in reversed(range(7))]
        ids, after = [], ""
        while after is not None:
            found, after = await made.history.read(search_events, EventsWanted(kind="instance"), 5, after)
            ids += [item.id for item in found]
        assert len(ids) == len(set(ids)) == 28 and ids == sorted(ids, reverse=True)
        with pytest.raises(Invalid, match="next"):
            await made.history.read(search_events, EventsWanted(), 5, "nonsense")


async def test_a_restart_goes_on_where_it_ended(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        was, state = made.was, made.state
    again = load(Snapshot(state.revision, was[state.revision]), state.now_ms)
    async with recorded_history(tmp_path, again) as made:
        made.happens("run", 0)
        await made.written()
        made.was |= was
        for revision in made.was:
            assert await made.differs(f"@{revision}", revision) == []
        assert made.history.standing().gaps == 0
        assert len(await events(made, what="submitted")) == 1


async def test_too_many_questions_at_once_are_refused(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        await made.written()
        made.history._reading = front.WAITING_MAX
        with pytest.raises(NoService, match="too many questions"):
            await made.history.moment("0s", made.state.now_ms)


async def test_a_server_that_only_follows_keeps_the_same_history(tmp_path: Path) -> None:
    leader = small_cluster()
    leader.meta.first_serial = 1
    mirrored = mirror(Snapshot(leader.revision, records_of(leader)))
    history = front.History(tmp_path, Settings())
    history.start()
    history.begin(mirrored, mirrored.revision)
    was = {}
    for kind, what in (("submit", JOB), ("run", 0), ("end", 0)):
        done = step(leader, events_of(leader, kind, what, leader.now_ms + 10), leader.now_ms + 10)
        since = mirrored.revision
        follow(mirrored, leader.revision, done.changes)
        followed = followed_transitions(mirrored, done.changes, since)
        assert followed == done.transitions
        history.take(mirrored, done.changes, followed)
        was[leader.revision] = records_of(leader)
    await until(lambda: history.standing().revision == leader.revision)
    for revision, records in was.items():
        past, _ = await history.at(f"@{revision}", leader.now_ms)
        assert differences(past, mirror(Snapshot(revision, records))) == []
    take_over(mirrored, leader.now_ms)
    done = step(mirrored, [Submit(1, (wanted({**JOB, "name": "two"}),))], leader.now_ms + 10)
    history.take(mirrored, done.changes, done.transitions)
    await until(lambda: history.standing().revision == mirrored.revision)
    assert history.standing().gaps == 0, "it leads now, and nothing was missed"
    await history.close()


async def test_other_users_cannot_read_it(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        await made.written()
        assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("history.db*")} == {0o600}


@pytest.mark.parametrize(
    ("setting", "value"),
    [("history", "maybe"), ("history_retention_ms", 0), ("history_retention_ms", 1 << 60), ("history_max", 1_000)],
)
def test_settings_that_cannot_work_are_refused(setting: str, value: Any) -> None:
    config = ServerConfig(data=Path("data"), admin_token="secret-admin-token", **{setting: value})
    with pytest.raises(Invalid) as refused:
        check_config(config)
    assert refused.value.path == setting


@pytest.mark.parametrize(
    ("store", "history", "keeps"),
    [("sqlite", "auto", True), ("memory", "auto", False), ("memory", "on", True), ("sqlite", "off", False)],
)
def test_what_has_no_memory_has_no_history_unless_asked_for(store: Any, history: Any, keeps: bool) -> None:
    config = ServerConfig(data=Path("data"), admin_token="secret-admin-token", store=store, history=history)
    assert config.keeps_history is keeps
