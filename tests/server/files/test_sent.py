"""Bytes that were sent and that nothing names: they are bounded for a principal and a project, and count no longer than
they lie there."""

import pytest

from roost.model.errors import NoService
from roost.model.records.files import FileSet
from roost.server.files import sent
from roost.server.files.sent import SentBytes

KEEP_MS = 1_000
SET = FileSet("m", 2, 40)


@pytest.fixture
def named() -> set[tuple[str, FileSet]]:
    return set()


@pytest.fixture
def bytes_sent(named: set[tuple[str, FileSet]], monkeypatch: pytest.MonkeyPatch) -> SentBytes:
    monkeypatch.setattr(sent, "PRINCIPAL_BYTES_MAX", 100)
    monkeypatch.setattr(sent, "PROJECT_BYTES_MAX", 150)
    monkeypatch.setattr(sent, "CONTENTS_MAX", 6)
    return SentBytes(lambda project, files: (project, files) in named, KEEP_MS)


def test_a_principal_is_bounded_over_all_projects_and_the_refusal_has_the_figures(bytes_sent: SentBytes) -> None:
    bytes_sent.add("red", "principal:ann", [("a", 60)], 0)
    bytes_sent.add("red", "principal:ann", [("a", 60)], 0)  # the next piece of the same
    bytes_sent.add("blue", "principal:ann", [("b", 40)], 0)
    with pytest.raises(NoService) as refused:
        bytes_sent.add("blue", "principal:ann", [("c", 1)], 0)
    assert refused.value.code == "files_held"
    assert refused.value.message.startswith("ann has 100 bytes of files that nothing uses yet, of at most 100; ")
    assert refused.value.params == {"bytes": 100, "bytes_max": 100, "more": 1}
    bytes_sent.add("blue", "principal:bob", [("c", 1)], 0)
    assert bytes_sent.size(0) == 101, "nothing of what was refused counts"


def test_a_project_is_bounded_over_all_principals(bytes_sent: SentBytes) -> None:
    bytes_sent.add("red", "principal:ann", [("a", 100)], 0)
    with pytest.raises(NoService, match="^project red has 100 bytes"):
        bytes_sent.add("red", "principal:bob", [("b", 51)], 0)
    bytes_sent.add("red", "principal:bob", [("b", 50)], 0)
    bytes_sent.add("blue", "principal:bob", [("b", 50)], 0)


def test_a_set_counts_until_a_record_names_it(bytes_sent: SentBytes, named: set[tuple[str, FileSet]]) -> None:
    bytes_sent.add("red", "principal:ann", [("a", 30), ("b", 10), ("m", 5), ("left", 7)], 0)
    assert bytes_sent.is_sending("red", "principal:ann")
    bytes_sent.made("red", "principal:ann", SET, ["a", "b", "was there"], 0)
    assert bytes_sent.size(0) == 52
    named.add(("blue", SET))
    assert bytes_sent.size(0) == 52, "a set of another project"
    named.add(("red", SET))
    bytes_sent.add("red", "principal:ann", [("c", 93)], 0)  # fits since the set is named
    assert bytes_sent.size(0) == 100


def test_what_garbage_collection_may_have_deleted_counts_no_more(bytes_sent: SentBytes) -> None:
    bytes_sent.add("red", "principal:ann", [("a", 60)], 0)
    bytes_sent.add("red", "principal:ann", [("m", 40)], 500)
    bytes_sent.made("red", "principal:ann", SET, [], 600)
    assert bytes_sent.size(KEEP_MS - 1) == 100
    assert bytes_sent.size(KEEP_MS) == 40, "each by its own age: an owner that always sends does not stay full"
    assert bytes_sent.size(600 + KEEP_MS) == 0
    assert not bytes_sent._sent and not bytes_sent._owners and not bytes_sent._projects


def test_an_attempt_whose_outputs_are_reported_is_released(bytes_sent: SentBytes) -> None:
    bytes_sent.add("red", "attempt:1", [("a", 60)], 0)
    bytes_sent.release("red", "attempt:1")
    bytes_sent.release("red", "attempt:1")
    assert bytes_sent.size(0) == 0 and not bytes_sent.is_sending("red", "attempt:1")


def test_contents_are_bounded_in_number(bytes_sent: SentBytes) -> None:
    bytes_sent.add("red", "principal:ann", [(str(number), 1) for number in range(6)], 0)
    with pytest.raises(NoService, match="too many files"):
        bytes_sent.add("red", "principal:bob", [("x", 1)], 0)
    bytes_sent.release("red", "principal:ann")
    bytes_sent.add("red", "principal:bob", [("x", 1)], 0)
