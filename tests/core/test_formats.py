"""The stored format: recorded stores are read or refused as declared; what is not understood is refused as a whole."""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roost import __version__
from roost.core.invariants import check
from roost.core.replica import load, mirror
from roost.core.state.records import FORMAT, Meta
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.project import Pool, Project, Reservation
from roost.model.records.usage import DayUsage, TypicalNeed
from roost.model.records.workload import Workload
from roost.ports.store import Change, Damaged, Snapshot, StoreError
from tools import formats

NOW = 2_000_000_000_000
TYPES = {
    "meta": Meta, "instance": Instance, "node": Node, "workload": Workload, "version": Workload,
    "project": Project, "pool": Pool, "reservation": Reservation, "usage": DayUsage, "need": TypicalNeed,
}  # fmt: skip


def recorded(path: Path) -> tuple[dict[str, Any], list[Change]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return content, [Change(kind, key, base64.b64decode(value)) for kind, key, value in content["records"]]


def refused(records: list[Change]) -> str:
    with pytest.raises(StoreError) as caught:
        mirror(Snapshot(1, records))
    assert isinstance(caught.value.failure, Damaged)
    return caught.value.failure.reason


FILES = sorted(formats.FOLDER.glob("format-*.json"))
_, CURRENT = recorded(formats.FOLDER / f"format-{FORMAT}.json")


def changed(kind: str, **fields: Any) -> list[Change]:
    """The recorded store, with other fields in the first record of a kind."""
    number = next(number for number, record in enumerate(CURRENT) if record.kind == kind)
    content = msgspec.msgpack.decode(CURRENT[number].value or b"")
    value = msgspec.msgpack.encode({**content, **fields})
    return [*CURRENT[:number], msgspec.structs.replace(CURRENT[number], value=value), *CURRENT[number + 1 :]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recorded_store_is_read_or_refused_as_declared(path: Path) -> None:
    content, records = recorded(path)
    if content["reads"]:
        state = load(Snapshot(1, records), NOW)
        assert not list(check(state))
        assert len(state.instances) == sum(record.kind == "instance" for record in records)
    else:
        assert f"format {content['format']}" in refused(records)


def test_the_current_format_is_recorded() -> None:
    assert recorded(FILES[-1])[0]["format"] == FORMAT
    assert {*TYPES, "secret"} <= {record.kind for record in CURRENT}
    instances = [record.value for record in CURRENT if record.kind == "instance"]
    states = {msgspec.msgpack.decode(value or b"")["state"] for value in instances}
    assert len(states) >= 5


def test_records_are_written_as_recorded() -> None:
    """A changed layout is a new format, also if the recorded store can still be read."""
    for stored in CURRENT:
        if stored.kind in TYPES:
            decoded = msgspec.msgpack.decode(stored.value or b"", type=TYPES[stored.kind])
            assert msgspec.msgpack.encode(decoded) == stored.value, stored.record
    made = {stored.record for stored in formats.records()}
    assert made == {stored.record for stored in CURRENT}, "run `python -m tools.formats`"


@pytest.mark.parametrize("stored", [FORMAT + 1, FORMAT + 100, 0, -1])
def test_a_store_of_another_format_is_refused_before_anything_is_read(stored: int) -> None:
    broken = [msgspec.structs.replace(record, value=b"?") for record in CURRENT if record.kind != "meta"]
    fields = {"format": stored, "release": "7.7.7", "unheard_of": 1}
    meta = [record for record in changed("meta", **fields) if record.kind == "meta"]
    message = refused([*broken, *meta])
    assert f"have format {stored}, by roost 7.7.7; this is roost {__version__} and reads format {FORMAT}" in message


@pytest.mark.parametrize("kind", TYPES)
def test_a_record_with_an_unknown_field_is_refused(kind: str) -> None:
    message = refused(changed(kind, unheard_of=1))
    assert f"record {kind} " in message and "unheard_of" in message


def test_a_record_with_an_unknown_status_is_refused() -> None:
    assert "frozen" in refused(changed("instance", state="frozen"))
    assert "frozen" in refused(changed("node", status="frozen"))


def test_unknown_kinds_and_garbage_are_refused() -> None:
    assert "which are not known here" in refused([*CURRENT, Change("dream", "x", b"1")])
    assert "record meta" in refused([Change("meta", "", b"?")])


def test_everything_that_is_stored_refuses_unknown_fields() -> None:
    """Also deep inside a record: a part that is dropped in silence is work that runs otherwise than asked for."""
    seen: set[type] = set()

    def walk(info: msgspec.inspect.Type) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                return
            seen.add(info.cls)
            assert info.cls.__struct_config__.forbid_unknown_fields, info.cls
            for field in info.fields:
                walk(field.type)
        for name in ("item_type", "key_type", "value_type"):
            if hasattr(info, name):
                walk(getattr(info, name))
        for name in ("item_types", "types"):
            for part in getattr(info, name, ()):
                walk(part)

    for kind in TYPES.values():
        walk(msgspec.inspect.type_info(kind))
    assert len(seen) > 50
