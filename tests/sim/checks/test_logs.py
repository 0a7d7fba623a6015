"""The checks of logs notice bytes that were not written, sizes that are wrong, and logs that are called finished."""

import pytest

from roost.server.logs.machine import LIVE, LogEnd, LogStatus
from roost.sim.checks.logs import LogCheckers
from roost.sim.world.world import Wrong

LOG = "default/job/1/0.1"


def truth() -> tuple[LogCheckers, bytes]:
    checkers = LogCheckers()
    checkers.began(LOG, 7)
    checkers.wrote(LOG, 20)
    return checkers, checkers.bytes_of(LOG)


def test_true_answers_pass() -> None:
    checkers, data = truth()
    checkers.read("s0", LOG, LIVE, LogStatus(12, False, 0), data[:12])
    checkers.read("s0", LOG, LogEnd(True, 20), LogStatus(12, False, 8), data[:12])
    checkers.read("s0", LOG, LogEnd(True, 20), LogStatus(12, True, 8), data[:12])
    checkers.read("s0", LOG, LogEnd(True), LogStatus(12, True, 0), data[:12])


@pytest.mark.parametrize("end, finished, missing, served, complaint", [
    (LIVE, False, 0, lambda data: data[:3] + data[4:8], "byte 3 is not what was written"),
    (LIVE, False, 0, lambda data: data + b"more", "byte 20 is not what was written"),
    (LIVE, True, 0, lambda data: data, "its attempt has not ended"),
    (LogEnd(True, 19), False, 0, lambda data: data[:19], "has 20 bytes, the state says 19"),
    (LogEnd(True, 20), True, 0, lambda data: data[:19], "finished with 19 of 20 bytes"),
    (LogEnd(True, 20), True, 2, lambda data: data[:19], "finished with 19 of 20 bytes"),
])  # fmt: skip
def test_false_answers_do_not(end: LogEnd, finished: bool, missing: int, served: object, complaint: str) -> None:
    checkers, data = truth()
    found: bytes = served(data)  # type: ignore[operator]
    with pytest.raises(Wrong, match=complaint):
        checkers.read("s0", LOG, end, LogStatus(len(found), finished, missing), found)


def test_no_two_attempts_write_one_log() -> None:
    checkers, _ = truth()
    with pytest.raises(Wrong, match="is the log of 7 and of 8"):
        checkers.began(LOG, 8)


def test_a_removed_log_may_be_short_only_after_the_removal_was_lost() -> None:
    checkers, _ = truth()
    checkers.began("default/job/10/0.1", 8)
    checkers.removed("default/job/1")
    assert not checkers.may_be_short(LOG), "the state must not have it"
    checkers.loss_accepted()
    assert checkers.may_be_short(LOG) and not checkers.may_be_short("default/job/10/0.1")


def test_a_segment_may_be_gone_only_with_its_workload() -> None:
    """A leader that does not know yet that it was replaced still names a workload that the next one has removed."""
    checkers, _ = truth()
    with pytest.raises(Wrong, match="s1 cannot read default/job/1/0.1: it is gone"):
        checkers.unreadable("s1", LOG, "it is gone")
    checkers.removed("default/job/1")
    checkers.unreadable("s1", LOG, "it is gone")
