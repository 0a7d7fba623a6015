"""Records kept for others, and the log of who changed what."""

import msgspec

from roost.core.records import target_of
from roost.core.replica import load
from roost.core.state.state import State
from roost.core.step import step
from roost.model.errors import Conflict, Invalid, TooMuch
from roost.model.events import AttributedRequest, Cancel, Event, PutRecords
from roost.model.records.opaque import OPAQUE_KINDS, VALUE_BYTES_MAX, Audit, By, OpaqueRecord
from roost.ports.store import Snapshot

ANN = By("ann", "10.0.0.7")


def kept(name: str, value: bytes | None, **more: bytes | None) -> OpaqueRecord:
    return OpaqueRecord("token", name, value, **more)  # type: ignore[arg-type]


def asked(state: State, event: Event) -> object:
    """The answer; what was committed is what a restart finds."""
    done = step(state, [event], state.now_ms + 1)
    return done.replies[-1].value


def audits(state: State) -> list[Audit]:
    entries = [msgspec.msgpack.decode(value, type=Audit) for value in state.opaque_records.get("audit", {}).values()]
    return sorted(entries, key=lambda entry: entry.number)


def test_a_record_is_kept_and_is_there_after_a_restart() -> None:
    state = State()
    done = step(state, [PutRecords(1, (kept("a", b"one"), kept("b", b"two")))], 5)
    assert done.replies[-1].value == 2
    again = load(Snapshot(1, done.changes), 9)
    assert again.opaque_records == {"token": {"a": b"one", "b": b"two"}}
    assert asked(again, PutRecords(2, (kept("a", None),))) == 1
    assert again.opaque_records["token"] == {"b": b"two"}


def test_all_records_of_a_request_are_kept_or_none() -> None:
    state = State()
    answer = asked(state, PutRecords(1, (kept("a", b"one"), kept("b", b"x" * (VALUE_BYTES_MAX + 1)))))
    assert isinstance(answer, TooMuch)
    assert state.opaque_records.get("token", {}) == {}


def test_a_plan_of_another_state_changes_nothing() -> None:
    state = State()
    asked(state, PutRecords(1, (kept("a", b"one"),)))
    for record, code in (
        (kept("a", b"two", was=None), "name_in_use"),
        (kept("a", b"two", was=b"other"), "changed"),
        (kept("c", b"two", was=b"other"), "changed"),
    ):
        answer = asked(state, PutRecords(2, (record,)))
        assert isinstance(answer, Conflict) and answer.code == code
    assert asked(state, PutRecords(3, (kept("a", b"two", was=b"one"), kept("b", b"new", was=None)))) == 2
    assert state.opaque_records["token"] == {"a": b"two", "b": b"new"}


def test_a_kind_has_a_limit_and_an_unknown_one_is_refused(monkeypatch: object) -> None:
    state = State()
    state.opaque_records["authority"] = {str(number): b"" for number in range(OPAQUE_KINDS["authority"])}
    answer = asked(state, PutRecords(1, (OpaqueRecord("authority", "one more", b""),)))
    assert isinstance(answer, Conflict) and answer.code == "too_many"
    assert asked(state, PutRecords(1, (OpaqueRecord("authority", "3", b"changed"),))) == 1
    for kind in ("audit", "instance", "nonsense"):
        assert isinstance(asked(state, PutRecords(1, (OpaqueRecord(kind, "x", b""),))), Invalid)


def test_completed_operations_are_audited_with_principal_and_address() -> None:
    state = State()
    asked(state, AttributedRequest(ANN, PutRecords(1, (kept("ci", b"secret hash"),))))
    (entry,) = audits(state)
    assert (entry.number, entry.who, entry.where, entry.what, entry.target) == (
        1, "ann", "10.0.0.7", "putrecords", "token ci",
    )  # fmt: skip
    assert entry.revision == state.revision == 1


def test_what_was_refused_is_not_noted() -> None:
    state = State()
    asked(state, AttributedRequest(ANN, Cancel(1, "web/nothing")))
    asked(state, PutRecords(2, (kept("unasked", b""),)))
    assert audits(state) == []


def test_the_log_is_a_ring_that_counts_on_after_a_restart() -> None:
    state = State()
    records: dict[tuple[str, str], object] = {}
    for number in range(OPAQUE_KINDS["audit"] + 5):
        done = step(state, [AttributedRequest(ANN, PutRecords(number, (kept("a", b"%d" % number),)))], number)
        records |= {change.record: change for change in done.changes}
    assert len(audits(state)) == OPAQUE_KINDS["audit"]
    assert audits(state)[-1].number == OPAQUE_KINDS["audit"] + 5
    again = load(Snapshot(state.revision, list(records.values())), 1)  # type: ignore[arg-type]
    asked(again, AttributedRequest(ANN, PutRecords(1, (kept("a", None),))))
    last = audits(again)[-1]
    assert (last.number, last.target) == (OPAQUE_KINDS["audit"] + 6, "token a (gone)")


def test_of_many_targets_the_first_are_named() -> None:
    many = PutRecords(1, tuple(kept(f"t{number}", b"") for number in range(9)))
    assert target_of(many) == "token t0, token t1, token t2 and 6 more"
