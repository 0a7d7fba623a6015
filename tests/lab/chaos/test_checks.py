"""Checks of a chaos run: each notices what it is there for, and good evidence passes all of them."""

from collections.abc import Callable

import pytest
from roost_lab.chaos.checks import Ended, Evidence, LogRead, SeenChange, check_all, log_problem
from roost_lab.chaos.jobs import Entry, Job

JOB = Job("a", 3, True, 1, 0.1)


def good() -> Evidence:
    """One fenced job that lost its first node and succeeded on the second."""
    return Evidence(
        jobs={"a": JOB, "b": JOB._replace(name="b")},
        accepted=["a"],
        refused={"b": "503"},
        ledger=[Entry("begin", "a", 1, "n0"), Entry("begin", "a", 2, "n1"), Entry("end", "a", 2, "n1")],
        ended={"a": Ended("succeeded", 2)},
        changes=[
            SeenChange(1, "a", "placed", 1),
            SeenChange(4, "a", "placed", 2),
            SeenChange(4, "a", "running", 2),
            SeenChange(7, "a", "succeeded", 2),
        ],
        logs=[LogRead("s0", "a", 2, 100)],
        whys=3,
        allocated={"n0": 0, "n1": 0},
    )


def wrong(evidence: Evidence) -> dict[str, list[str]]:
    return {result.check: result.wrong for result in check_all(evidence) if result.wrong}


def test_good_evidence_passes() -> None:
    assert wrong(good()) == {}


def _lost(evidence: Evidence) -> None:
    evidence.accepted.append("c")


def _exists(evidence: Evidence) -> None:
    evidence.refused["a"] = "503 unavailable"


def _twice(evidence: Evidence) -> None:
    evidence.ledger.append(Entry("begin", "a", 2, "n0"))


def _never_ended(evidence: Evidence) -> None:
    evidence.ledger.pop()


def _failed(evidence: Evidence) -> None:
    evidence.ended["a"] = Ended("failed", 2)
    evidence.changes[-1] = SeenChange(7, "a", "failed", 2)


def _overlap(evidence: Evidence) -> None:
    evidence.ledger.insert(1, Entry("overlap", "a", 2, "n1"))


def _short_log(evidence: Evidence) -> None:
    evidence.logs.append(LogRead("s1", "a", 2, 90, "90 of 100 bytes"))


def _end_not_seen(evidence: Evidence) -> None:
    evidence.changes.pop()


def _out_of_order(evidence: Evidence) -> None:
    evidence.changes.append(SeenChange(3, "a", "succeeded", 2))


def _seen_twice(evidence: Evidence) -> None:
    evidence.changes.append(evidence.changes[-1])


def _alive_again(evidence: Evidence) -> None:
    evidence.changes += [SeenChange(8, "a", "placed", 3), SeenChange(9, "a", "succeeded", 3)]


def _no_answer(evidence: Evidence) -> None:
    evidence.whys_wrong.append("a: 500")


def _leak(evidence: Evidence) -> None:
    evidence.allocated["n1"] = 250


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (_lost, "acknowledgements"), (_exists, "acknowledgements"), (_twice, "runs"), (_never_ended, "runs"),
        (_failed, "runs"), (_overlap, "overlaps"), (_short_log, "log bytes"), (_end_not_seen, "watch streams"),
        (_out_of_order, "watch streams"), (_seen_twice, "watch streams"), (_alive_again, "watch streams"),
        (_no_answer, "why"), (_leak, "capacity"),
    ],
)  # fmt: skip
def test_each_check_notices_what_it_is_for(spoil: Callable[[Evidence], None], check: str) -> None:
    evidence = good()
    spoil(evidence)
    assert list(wrong(evidence)) == [check]


def test_what_a_list_showed_after_a_reset_counts_as_seen() -> None:
    evidence = good()
    evidence.changes.pop()
    evidence.listed["a"] = "succeeded"
    assert wrong(evidence) == {}


def test_a_cancelled_job_may_end_as_cancelled() -> None:
    evidence = good()
    evidence.cancelled.append("a")
    evidence.ended["a"] = Ended("cancelled", 1)
    evidence.changes[-1] = SeenChange(7, "a", "cancelled", 1)
    assert wrong(evidence) == {}


def test_a_log_is_compared_byte_by_byte() -> None:
    whole = JOB.log(2)
    size = len(whole)
    shifted, longer = whole[:2] + whole[3:] + b"\n", whole + b"x"
    assert log_problem(whole, whole) == ""
    assert log_problem(whole[:-1], whole) == f"{size - 1} of {size} bytes, and it is called complete"
    assert log_problem(shifted, whole) == f"{size} bytes for {size}, wrong from byte 2 on"
    assert log_problem(longer, whole) == f"{size + 1} bytes for {size}, wrong from byte {size} on"
