"""A backup is one file that is whole or refused; what goes on from it gives out no serial twice."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from roost.core.state.records import SERIALS_PER_MS, Meta
from roost.model.errors import Invalid, Unreadable
from roost.model.keys import log_name
from roost.ports.store import Change, Snapshot
from roost.server.maintenance import backup
from roost.server.maintenance.backup import as_of_now, read_backup, revision_as_of_now, write_backup
from roost.stores.memory import Memory
from tests.core.scene import Scene, job

RECORDS = [Change("instance", f"default/job.{number}", bytes([number % 256]) * number) for number in range(500)] + [
    Change("workload", "default/ä☃\0", b"\0\xff" * 4_000),
    Change("meta", "meta", b""),
]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(backup, "FRAME_BYTES", 10_000)  # several frames
    write_backup(tmp_path / "backup", Snapshot(4_711, RECORDS), "somewhere", 1_000)
    return tmp_path / "backup"


def test_what_was_written_is_read_again(written: Path) -> None:
    header, records = read_backup(written)
    assert records == RECORDS
    assert (header.revision, header.taken_ms, header.store) == (4_711, 1_000, "somewhere")
    assert header.kinds == {"instance": (500, sum(range(500)) - 0), "meta": (1, 0), "workload": (1, 8_000)}


def test_it_is_for_its_owner_alone_and_nothing_else_is_left(written: Path) -> None:
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert os.listdir(written.parent) == ["backup"]


def test_an_empty_store_makes_a_backup_too(tmp_path: Path) -> None:
    write_backup(tmp_path / "empty", Snapshot(0, []), "nowhere", 1)
    assert read_backup(tmp_path / "empty")[1] == []


def test_no_cut_off_file_is_read(written: Path) -> None:
    whole = written.read_bytes()
    for length in {*range(60), *range(60, len(whole), 97), *range(len(whole) - 30, len(whole))}:
        written.write_bytes(whole[:length])
        with pytest.raises(Unreadable):
            read_backup(written)


def test_no_file_with_a_flipped_bit_is_read(written: Path) -> None:
    whole = written.read_bytes()
    for place in {*range(80), *range(80, len(whole), 53), *range(len(whole) - 30, len(whole))}:
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        written.write_bytes(damaged)
        with pytest.raises((Unreadable, Invalid)):
            read_backup(written)


def test_nothing_may_follow_the_end(written: Path) -> None:
    with written.open("ab") as file:
        file.write(b"more")
    with pytest.raises(Unreadable, match="its end"):
        read_backup(written)


def test_a_frame_that_is_missing_is_noticed(written: Path) -> None:
    """Every frame left is as it was written; only the end knows how many there were."""
    whole = written.read_bytes()
    with written.open("rb") as file:
        file.readline()
        backup._read_frame(written, file)
        start = file.tell()
        backup._read_frame(written, file)
        end = file.tell()
    written.write_bytes(whole[:start] + whole[end:])
    with pytest.raises(Unreadable, match="its end"):
        read_backup(written)


@pytest.mark.parametrize("content", [b"", b"\n", b"roost journal 1\n", b"\0" * 100, b"PK\x03\x04" * 100])
def test_other_files_are_not_taken_for_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(Unreadable, match="no backup of Roost"):
        read_backup(tmp_path / "other")


def test_a_later_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "later").write_bytes(b"roost backup 2\nwhatever")
    with pytest.raises(Invalid, match="format 2"):
        read_backup(tmp_path / "later")


def test_one_that_cannot_be_written_leaves_the_old_one(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_backup(written, Snapshot(1, []), "somewhere", 2)
    assert written.read_bytes() == before
    assert os.listdir(written.parent) == ["backup"]


def test_serials_that_were_given_out_after_the_backup_are_not_given_out_again() -> None:
    meta = Meta(first_serial=1_000, reserved=5_000, lease_ms=77)
    node = Change("node", "n", b"as it is")
    fit = as_of_now([Change("meta", "meta", msgspec.msgpack.encode(meta)), node], now_ms=1_000_000)
    assert msgspec.msgpack.decode(fit[0].value or b"", type=Meta) == Meta(
        first_serial=1_000, reserved=1_000_000 * SERIALS_PER_MS, lease_ms=77
    )
    assert fit[1:] == [node]
    again = as_of_now(fit, now_ms=500_000)
    assert again == fit, "a clock that was set back changes nothing"


def test_attempts_that_came_after_the_backup_share_no_log_and_no_token_with_later_ones() -> None:
    """Of three instances, one had an attempt before, one had its first after it, and one had both."""
    scene = Scene("a", cpu=2)
    retries = {"max": 5, "on": ["failed", "lost"]}
    scene.submit(job("j", count=3, retries=retries))
    scene.running("j.0", "j.1")
    kept = scene.memory.snapshot()
    scene.ended("j.0", code=1)
    scene.ended("j.1")
    before = dict(scene.runs)
    assert sorted((run.index, run.attempt) for run in before.values()) == [(0, 1), (0, 2), (1, 1), (2, 1)]
    scene.now += 1
    scene.memory = Memory()
    scene.memory._revision = revision_as_of_now(scene.state.revision, scene.now, scene.now)
    scene.memory._records = {record.record: record for record in as_of_now(kept.records, scene.now)}
    scene.restart()
    scene.hello("a", cpu=3)
    after = {token: run for token, run in scene.runs.items() if token not in before}
    assert sorted(run.index for run in after.values()) == [0, 1, 2]
    logs = [log_name(run.workload, run.serial, run.index, run.attempt) for run in (*before.values(), *after.values())]
    assert len(set(logs)) == len(logs) == 7
    scene.running("j.0")
    scene.ended("j.0", code=1)
    assert scene.instance("j.0").attempt == min(run.attempt for run in after.values()) + 1, "only once so many"


def test_revisions_that_came_after_the_backup_do_not_come_again() -> None:
    day_ms = 86_400_000
    first = revision_as_of_now(4_711, taken_ms=0, now_ms=day_ms)
    assert first > 4_711 + day_ms, "whatever was committed within that day"
    again = revision_as_of_now(4_711, taken_ms=0, now_ms=2 * day_ms)
    assert again > first + day_ms, "and whatever was committed after the first time"
    assert revision_as_of_now(4_711, taken_ms=day_ms, now_ms=0) > 4_711, "a clock that was set back"
