"""A shared history: whatever happens to leaders and disks, all servers have the same rows, each commit once."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.core.invariants import differences
from roost.core.replica import mirror
from roost.core.state.records import Settings
from roost.model.errors import NotFound
from roost.model.records.opaque import Audit
from roost.ports.store import Snapshot
from roost.server.history import shared
from tests.core.random_clusters import ACTION_LISTS
from tests.server.history.team import Member, Team
from tests.server.recorded_history import until

JOB = {"name": "one", "command": "true", "resources": {"cpu": 1}}

TURNS = st.sampled_from(["goes on", "goes on", "leader is killed", "leader is replaced", "server joins", "is written"])


def happened(member: Member) -> list[Any]:
    """The events without their times: a follower does not know when the leader committed."""
    return sorted(row[2:] for row in member.rows()["events"])


async def expect_the_same(team: Team) -> None:
    first, *others = [member.rows() for member in team.members]
    for other in others:
        assert other == first
    lines = [row[2:] for row in first["events"] if row[3] == "instance"]
    assert len(lines) == len(set(lines)), "nothing is reported twice"
    assert not [row for row in first["events"] if row[3] == "history"], "there is no gap"


@given(ACTION_LISTS, st.lists(TURNS, min_size=4, max_size=8))
@settings(max_examples=20)
def test_all_servers_have_every_commit_once_although_leaders_are_killed(actions: list[Any], turns: list[str]) -> None:
    asyncio.run(_live(actions * 2, turns))


async def _live(actions: list[Any], turns: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        team = Team(Path(folder), 3)
        try:
            await _take_turns(team, actions, turns)
        finally:  # a failure is searched for its smallest case: hundreds of teams would stay open
            await team.close()


async def _take_turns(team: Team, actions: list[Any], turns: list[str]) -> None:
    share = len(actions) // len(turns) + 1
    for place, turn in enumerate(turns):
        for kind, what in actions[place * share : (place + 1) * share]:
            team.happens(kind, what)
        match turn:
            case "leader is killed" if len(team.members) > 1:
                killed = team.leader
                team.cut(killed)
                team.lead(next(member for member in team.members if member is not killed))
                await team.kill(killed)
            case "leader is replaced":
                team.lead(team.members[-1])
            case "server joins":
                team.join()
            case "is written":
                await team.written()
    team.join()
    team.happens("submit", JOB)
    await team.written()
    await expect_the_same(team)
    first = begins_at(team.members[-1])
    for revision, records in team.was.items():
        if revision < first:
            await expect_no_past(team.members[-1], revision)
            continue
        past, moment = await team.members[-1].history.at(f"@{revision}", team.now_ms)
        if moment.revision == revision:
            assert differences(past, mirror(Snapshot(revision, records), Settings())) == []


def begins_at(member: Member) -> int:
    """The first revision of the history: leaders that were killed before they wrote a page have left nothing."""
    return min(int(row[2]) for row in member.rows()["snapshots"])


async def expect_no_past(member: Member, revision: int) -> None:
    with pytest.raises(NotFound, match="it begins at") as caught:
        await member.history.at(f"@{revision}", 0)
    assert caught.value.code == "not_in_history"


async def test_a_history_begins_with_the_first_leader_that_could_write(tmp_path: Path) -> None:
    team = Team(tmp_path, 1)
    before = team.leader
    before.cable.is_cut = True
    team.happens("submit", JOB)
    began = team.leader.state.revision
    team.lead(team.join())
    await team.kill(before)
    team.happens("run", 0)
    await team.written()
    assert begins_at(team.leader) == began
    await expect_no_past(team.leader, began - 1)
    past, _ = await team.leader.history.at(f"@{began}", team.now_ms)
    assert differences(past, mirror(Snapshot(began, team.was[began]), Settings())) == []
    assert not [row for row in team.leader.rows()["events"] if row[3] == "history"]
    await team.close()


async def test_a_new_server_makes_its_file_from_the_pages(tmp_path: Path) -> None:
    team = Team(tmp_path)
    for kind, what in (("submit", JOB), ("run", 0), ("end", 0)):
        team.happens(kind, what)
    await team.written()
    team.join()
    await team.written()
    await expect_the_same(team)
    assert [row[8] for row in team.members[-1].rows()["events"] if row[3] == "instance"] == [
        "queued", "placed", "running", "succeeded"
    ]  # fmt: skip
    await team.close()


async def test_a_leader_alone_gets_from_the_store_what_the_killed_one_has_not_written(tmp_path: Path) -> None:
    team = Team(tmp_path, 1)
    team.happens("submit", JOB)
    await team.written()
    before = team.leader
    before.cable.is_cut = True
    for kind, what in (("run", 0), ("end", 0)):
        team.happens(kind, what)
    team.lead(team.join())
    await team.kill(before)
    await team.written()
    await expect_the_same(team)
    ends = [row[8] for row in team.leader.rows()["events"] if row[3] == "instance"]
    assert ends == ["queued", "placed", "running", "succeeded"]
    assert len(team.leader.rows()["workloads"]) == 1
    await team.close()


async def test_commits_that_are_nowhere_are_a_gap(tmp_path: Path) -> None:
    team = Team(tmp_path, 1)
    team.happens("submit", JOB)
    await team.written()
    before, first = team.leader, team.leader.state.revision + 1
    before.cable.is_cut = True
    for kind, what in (("run", 0), ("end", 0)):
        team.happens(kind, what)
    team.commits.kept.clear()
    last = before.state.revision
    team.lead(team.join())
    await team.kill(before)
    await team.written()
    (gap,) = [row for row in team.leader.rows()["events"] if row[3] == "history"]
    assert f"commits {first} to {last} may be missing" in gap[9]
    assert "are not kept" in gap[9]
    assert team.leader.history.standing().gaps == 1
    await team.close()


async def test_commits_are_held_while_the_place_is_away_and_reads_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Team(tmp_path)
    team.happens("submit", JOB)
    await team.written()
    standby = team.members[1]
    written = standby.history.standing()
    for member in team.members:
        member.cable.is_cut = True
    team.happens("run", 0)
    for member in team.members:
        await until(lambda member=member: member.history.standing().failed)
        behind = await member.history.behind()
        assert behind is not None and behind.revision == written.revision and behind.at_ms == written.at_ms
        assert "the cable is cut" in behind.reason
        moment = await member.history.moment(f"@{written.revision}", 0)
        assert "later commits are not here yet" in moment.gap
    assert team.leader.history.standing().waiting > 0
    for member in team.members:
        member.cable.is_cut = False
    await team.written()
    assert await standby.history.behind() is None
    await expect_the_same(team)
    await team.close()


async def test_what_is_too_much_to_hold_is_read_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "HELD_BYTES_MAX", 1_000)
    team = Team(tmp_path)
    await team.written()
    team.leader.cable.is_cut = True
    for number in range(20):
        team.happens("submit", {**JOB, "name": f"job-{number}"})
    await until(lambda: team.leader.history.standing().failed)
    team.leader.cable.is_cut = False
    await team.written()
    await expect_the_same(team)
    submitted = [row for row in team.leader.rows()["events"] if row[8] == "submitted"]
    assert len(submitted) == 20
    await team.close()


async def test_a_file_with_other_pages_is_made_again(tmp_path: Path) -> None:
    team = Team(tmp_path)
    team.happens("submit", JOB)
    await team.written()
    deposed = team.leader
    later = deposed.cable._objects  # what it writes now, the next leader does not see
    team.happens("run", 0)
    await until(lambda: deposed.history.standing().revision == deposed.state.revision)
    for key in later.list("history.d"):
        later.delete(key)
    team.lead(team.members[1])
    team.happens("end", 0)
    await team.written()
    await expect_two(team)
    await team.close()


async def expect_two(team: Team) -> None:
    first, second = [member.rows() for member in team.members]
    assert first == second
    assert [row[9] for row in first["events"] if row[3] == "history"], "a gap is reported"


async def test_entries_that_are_in_no_commit_are_shared_once(tmp_path: Path) -> None:
    team = Team(tmp_path)
    await team.written()
    team.leader.history.note(Audit(0, 5, "user:ann", "10.0.0.1", "submit", "web/x", 1, "no role", True))
    await until(lambda: team.leader.rows()["audits"])
    team.happens("submit", JOB)
    await team.written()
    assert [len(member.rows()["audits"]) for member in team.members] == [1, 1]
    await expect_the_same(team)
    await team.close()


async def test_the_leader_deletes_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "ROOM_EVERY_S", 0.0)
    monkeypatch.setattr(shared, "FLOOR_STEP_MS", 0)
    team = Team(tmp_path)
    for number in range(3):
        team.happens("submit", {**JOB, "name": f"job-{number}"})
        team.happens("end", 0)
    await team.written()
    assert len(team.members[1].rows()["events"]) > 6
    team.leader.history._writer._retention_ms = 1
    await until(lambda: all(not member.rows()["events"] for member in team.members))
    await until(lambda: team.members[0].rows() == team.members[1].rows())
    await team.close()
