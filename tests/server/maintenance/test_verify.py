"""A sound store has nothing wrong; in a damaged one every bad record is named, and the others are still looked at."""

import msgspec
import pytest

from roost.ports.store import Change, Snapshot
from roost.server.maintenance.verify import Examined, examine
from tests.core.scene import Scene, job, service


@pytest.fixture
def snapshot() -> Snapshot:
    scene = Scene("a", "b")
    scene.submit(job("one", count=3), service("two"))
    scene.running("one.0", "two.0")
    scene.ended("one.0")
    scene.submit(job("late", count=50))
    return scene.memory.snapshot()


def examined(snapshot: Snapshot, *changes: Change) -> Examined:
    records = {record.record: record for record in snapshot.records}
    for change in changes:
        if change.value is None:
            del records[change.record]
        else:
            records[change.record] = change
    return examine(Snapshot(snapshot.revision, list(records.values())), now_ms=2_000_000)


def wrong(found: Examined) -> list[tuple[str, str, str]]:
    return [(finding.sort, finding.kind, finding.key) for finding in found.findings]


def test_a_sound_store_is_counted_and_nothing_is_wrong(snapshot: Snapshot) -> None:
    found = examined(snapshot)
    assert found.findings == []
    assert found.wrong == 0
    assert found.revision == snapshot.revision
    assert {kind.kind: kind.records for kind in found.kinds}.items() >= {"workload": 3, "node": 2, "meta": 1}.items()
    assert (
        found.bytes
        == sum(kind.bytes for kind in found.kinds)
        == sum(len(change.value or b"") for change in snapshot.records)
    )
    sizes = [large.bytes for large in found.largest]
    assert sizes == sorted((len(change.value or b"") for change in snapshot.records), reverse=True)[:5]


def test_an_empty_store_is_sound() -> None:
    assert examine(Snapshot(0, []), 1).wrong == 0


def test_a_record_that_cannot_be_read_is_named(snapshot: Snapshot) -> None:
    found = examined(snapshot, Change("instance", "default/one.0", b"\xc1"), Change("project", "web", b"{}"))
    assert wrong(found)[:2] == [("unreadable", "project", "web"), ("unreadable", "instance", "default/one.0")]


def test_an_unknown_kind_is_named_alone(snapshot: Snapshot) -> None:
    assert wrong(examined(snapshot, Change("toaster", "t", b"1"))) == [("unknown", "toaster", "t")]


def test_an_instance_without_its_workload_is_an_orphan(snapshot: Snapshot) -> None:
    found = examined(snapshot, Change("workload", "default/two", None))
    assert wrong(found) == [("orphan", "instance", "default/two.0")]
    assert "default/two, which is not there" in found.findings[0].message


def test_an_instance_on_a_node_that_is_not_there_is_an_orphan(snapshot: Snapshot) -> None:
    instances = [record for record in snapshot.records if record.kind == "instance"]
    on_a = {
        record.key
        for record in instances
        if (answer := msgspec.msgpack.decode(record.value or b""))["node"] == "a"
        and answer["state"] in ("placed", "running")
    }
    found = examined(snapshot, Change("node", "a", None))
    assert {key for sort, kind, key in wrong(found) if sort == "orphan"} == on_a
    assert on_a


def test_broken_rules_are_reported_in_a_message(snapshot: Snapshot) -> None:
    record = next(change for change in snapshot.records if change.record == ("instance", "default/two.0"))
    answer = msgspec.msgpack.decode(record.value or b"")
    answer["attempt"] = 0
    found = examined(snapshot, msgspec.structs.replace(record, value=msgspec.msgpack.encode(answer)))
    assert [finding.sort for finding in found.findings] == ["rule"]
    assert "instances_are_whole" in found.findings[0].message


def test_many_findings_are_counted_and_some_are_listed(snapshot: Snapshot) -> None:
    found = examined(snapshot, *(Change("toaster", str(number), b"1") for number in range(500)))
    assert (found.wrong, len(found.findings)) == (500, 100)
