"""The spool's machine: questions first, every byte once from where the server has it, and no file goes too early."""

from roost.agent.logs.machine import (
    ANSWER_MS_MAX,
    ASK_MS,
    HOLE_BYTES,
    RETRY_MS_MIN,
    CloseLogStream,
    GiveBack,
    OpenLogStream,
    ReadFile,
    SendBatch,
    SpoolMachine,
    UnlinkFile,
)
from roost.model.limits import BYTES_MAX
from roost.model.protocol import LogChunk

LOG, OTHER = "p/job/1/0.1", "p/job/1/1.1"


def started() -> SpoolMachine:
    machine = SpoolMachine(lambda: 1.0)
    machine.start()
    return machine


def question(*logs: str, offset: int = 0) -> SendBatch:
    return SendBatch(tuple(LogChunk(log, offset) for log in logs))


def asked(*logs: str) -> SpoolMachine:
    """A machine that has opened a stream and asked about logs that ended with four bytes."""
    machine = started()
    for log in logs:
        machine.ended(log, 4, 0)
    assert machine.tick(0) == [OpenLogStream(), question(*logs)]
    return machine


def test_a_stream_begins_with_the_question_how_far_the_server_is() -> None:
    machine = asked(LOG)
    assert machine.tick(1) == [], "nothing before the answer"
    assert machine.answered([(LOG, 1, 1)], 1) == [ReadFile(LOG, 1, 3)]
    assert machine.was_read(b"yes", 4, 1) == [SendBatch((LogChunk(LOG, 1, b"yes"),))]
    assert machine.answered([(LOG, 4, 4)], 2) == []
    assert machine.is_idle and machine.release(LOG) == [UnlinkFile(LOG)] and not machine.logs


def test_logs_share_a_batch() -> None:
    machine = asked(LOG, OTHER)
    assert machine.answered([(LOG, 0, 0), (OTHER, 0, 0)], 1) == [ReadFile(LOG, 0, 4)]
    assert machine.was_read(b"logs", 4, 1) == [ReadFile(OTHER, 0, 4)]
    assert machine.was_read(b"more", 4, 1) == [SendBatch((LogChunk(LOG, 0, b"logs"), LogChunk(OTHER, 0, b"more")))]


def test_a_file_stays_until_the_server_has_all_of_it() -> None:
    machine = asked(LOG)
    assert machine.release(LOG) == []
    assert machine.answered([(LOG, 3, 3)], 1) == [ReadFile(LOG, 3, 1)]
    assert machine.was_read(b"s", 4, 1) == [SendBatch((LogChunk(LOG, 3, b"s"),))]
    assert machine.answered([(LOG, 4, 4)], 2) == [UnlinkFile(LOG)]


def test_a_file_stays_until_its_log_is_durable_at_the_server() -> None:
    machine = asked(LOG)
    machine.release(LOG)
    assert machine.answered([(LOG, 4, 0)], 1) == [] and machine.is_idle
    assert machine.next_ms() == 1 + ASK_MS
    assert machine.tick(ASK_MS) == []
    assert machine.tick(1 + ASK_MS) == [question(LOG, offset=4)]
    assert machine.answered([(LOG, 4, 3)], 1_010) == []
    assert machine.tick(1_011 + ASK_MS) == [question(LOG, offset=4)]
    assert machine.answered([(LOG, 4, 4)], 2_020) == [UnlinkFile(LOG)]
    assert machine.next_ms() is None and machine.tick(9_999) == [] and not machine.logs


def test_a_log_that_ends_when_the_server_has_all_of_it_is_asked_about() -> None:
    machine = started()
    machine.grown(LOG, 0)
    assert machine.tick(0) == [OpenLogStream(), question(LOG)]
    assert machine.answered([(LOG, 4, 0)], 1) == [ReadFile(LOG, 4, 256 << 10)]
    assert machine.was_read(b"", 4, 1) == []
    machine.ended(LOG, 4, 5)
    assert machine.tick(5) == [] and machine.next_ms() == 5 + ASK_MS
    assert machine.tick(5 + ASK_MS) == [question(LOG, offset=4)]


def test_another_server_makes_a_log_durable_again() -> None:
    machine = asked(LOG)
    assert machine.answered([(LOG, 4, 4)], 1) == []
    assert machine.reconnected() == []
    assert machine.release(LOG) == [], "that server may have nothing"
    machine.tick(2)
    assert machine.answered([(LOG, 4, 4)], 3) == [UnlinkFile(LOG)]


def test_a_new_session_leaves_the_stream_whose_answer_is_awaited() -> None:
    machine = asked(LOG)
    assert machine.reconnected() == [CloseLogStream()]
    assert machine.answered([(LOG, 4, 4)], 1) == [], "that answer was of the old stream"
    assert machine.tick(1) == [OpenLogStream(), question(LOG)]


def test_bytes_that_one_server_has_are_sent_to_the_next() -> None:
    machine = asked(LOG)
    assert machine.answered([(LOG, 4, 4)], 1) == [] and machine.is_idle
    assert machine.reconnected() == []
    assert machine.tick(2) == [CloseLogStream(), OpenLogStream(), question(LOG)]
    assert machine.answered([(LOG, 0, 0)], 3) == [ReadFile(LOG, 0, 4)]


def test_a_file_that_a_new_session_releases_stays_until_that_server_has_all_of_it() -> None:
    """The server before had all of it, and the next one, or the next life of the same one, may have nothing."""
    machine = asked(LOG)
    assert machine.answered([(LOG, 4, 4)], 1) == []
    assert machine.reconnected() == []
    assert machine.release(LOG) == []
    assert machine.tick(2) == [CloseLogStream(), OpenLogStream(), question(LOG)]
    assert machine.answered([(LOG, 0, 0)], 3) == [ReadFile(LOG, 0, 4)]
    assert machine.was_read(b"logs", 4, 3) == [SendBatch((LogChunk(LOG, 0, b"logs"),))]
    assert machine.answered([(LOG, 4, 4)], 4) == [UnlinkFile(LOG)]
    assert machine.is_idle and not machine.logs


def test_trouble_is_waited_out_for_longer_each_time_and_nothing_is_given_up() -> None:
    machine = asked(LOG)
    machine.release(LOG)
    now = 0
    for pause_ms in (RETRY_MS_MIN, 2 * RETRY_MS_MIN):
        assert machine.broken(now) == [CloseLogStream()]
        assert machine.tick(now + pause_ms - 1) == [] and machine.next_ms() == now + pause_ms
        now += pause_ms
        assert machine.tick(now) == [OpenLogStream(), question(LOG)]
    assert machine.stuck_ms(now) == now


def test_a_server_that_does_not_answer_is_left() -> None:
    machine = asked(LOG)
    assert machine.next_ms() == ANSWER_MS_MAX
    assert machine.tick(ANSWER_MS_MAX) == [CloseLogStream()]


def test_a_truncated_log_ends_where_it_was_cut() -> None:
    machine = asked(LOG)
    machine.release(LOG)
    assert machine.answered([(LOG, 2, 2)], 1) == [ReadFile(LOG, 2, 2)]
    assert machine.was_read(b"", 2, 1) == [UnlinkFile(LOG)]


def test_growth_that_is_reported_after_the_file_has_gone_leaves_nothing() -> None:
    machine = asked(LOG)
    machine.release(LOG)
    assert machine.answered([(LOG, 4, 4)], 1) == [UnlinkFile(LOG)]
    machine.grown(LOG, 2)
    assert machine.tick(2) == [ReadFile(LOG, 0, 256 << 10)]
    assert machine.was_read(b"", 0, 2) == [] and not machine.logs and machine.is_idle


def test_disk_of_a_log_that_the_server_wants_no_more_of_is_given_back() -> None:
    machine = started()
    machine.grown(LOG, 0)
    machine.tick(0)
    assert machine.answered([(LOG, BYTES_MAX, BYTES_MAX)], 1) == [ReadFile(LOG, BYTES_MAX, 256 << 10)]
    assert machine.was_read(b"", HOLE_BYTES, 1) == [GiveBack(LOG, 0, HOLE_BYTES)]
    machine.grown(LOG, 2)
    machine.tick(2)
    assert machine.was_read(b"", HOLE_BYTES + 1, 2) == []


def test_files_of_an_earlier_agent_are_taken_up() -> None:
    machine = started()
    files = [("p/live/1/0.1", 3), ("p/over/1/0.1", 3), ("p/left/1/0.1", 3), ("p/empty/1/0.1", 0), ("p/new/1/0.1", 0)]
    live, ended = {"p/live/1/0.1", "p/new/1/0.1"}, {"p/over/1/0.1"}
    assert machine.begin(files, live, ended, 5) == [UnlinkFile("p/empty/1/0.1")]
    found = {log.name: (log.final, log.released) for log in machine.logs.values()}
    assert found == {
        "p/live/1/0.1": (None, False), "p/over/1/0.1": (3, False), "p/left/1/0.1": (3, True),
        "p/new/1/0.1": (None, False),
    }  # fmt: skip
    assert machine.stuck_ms(6) == 1
