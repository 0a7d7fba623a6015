"""Server-sent events: however the bytes are cut, the same events come out, and a broken stream goes on."""

import os
import resource
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from roost.client.errors import ApiError, Unreachable
from roost.client.stream import Body, Events, LogFollower, ServerEvent, StderrBytes, StreamFollower, next_of
from roost.client.transport import Transport
from roost.schema.feed import AttemptView, EndingView
from tests.client.wires import answer, events, wire

SENT = b"id: 1-5\n\nid: 2-5\nevent: change\ndata: {}\n\n: still here\n\ndata: a\ndata: b\r\n\r\nevent: end\ndata:\n\n"
SEEN = [ServerEvent("2-5", "change", "{}"), ServerEvent("2-5", "message", "a\nb"), ServerEvent("2-5", "end", "")]


@given(cuts=some.lists(some.integers(0, len(SENT)), max_size=8))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    parser = Events()
    edges = [0, *sorted(cuts), len(SENT)]
    parts = [SENT[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    assert [event for part in parts for event in parser.feed(part)] == SEEN
    assert parser.last_id == "2-5"


def test_a_mark_without_an_event_is_a_place_to_come_back_to() -> None:
    parser = Events()
    assert parser.feed(b"id: 7-1\n\n") == []
    assert parser.last_id == "7-1"


@given(pieces=some.lists(some.binary(min_size=1, max_size=40), max_size=6), step=some.integers(1, 50))
def test_chunks_become_the_body_again(pieces: list[bytes], step: int) -> None:
    raw = b"".join(b"%x;note=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    body = Body(chunked=True)
    assert b"".join(body.feed(raw[at : at + step]) for at in range(0, len(raw), step)) == b"".join(pieces)
    assert body.ended


def follower(url: str, kind: type[StreamFollower] = StreamFollower) -> StreamFollower:
    transport = Transport(url, "secret")
    return kind(lambda last_id: transport.stream("/events", None, last_id))


def test_a_stream_that_breaks_goes_on_after_the_last_event() -> None:
    first = events(b"id: 4-9\nevent: change\ndata: one\n\nid: 5-9\n\n")
    second = events(b"id: 6-9\nevent: change\ndata: two\n\n")
    with wire([first], [second]) as server, follower(server.url) as following:
        assert following.next(10) == ServerEvent("4-9", "change", "one")
        assert following.next(10) == ServerEvent("6-9", "change", "two")
    assert b"Last-Event-ID" not in server.requests[0]
    assert b"Last-Event-ID: 5-9\r\n" in server.requests[1]  # the mark counts, though it was no event
    assert b"Authorization: Bearer secret\r\n" in server.requests[1]


def test_pieces_of_a_separate_stderr_are_marked() -> None:
    sent = events(b"id: 1.2\ndata: b3V0\n\nid: 1.2.3\nevent: stderr\ndata: ZXJy\n\n")
    with wire([sent]) as server, follower(server.url, LogFollower) as following:
        assert isinstance(following, LogFollower)
        pieces = [following.piece(10), following.piece(10)]
        assert pieces == [b"out", b"err"]
        assert [isinstance(piece, StderrBytes) for piece in pieces] == [False, True]
        assert following.last_id == "1.2.3"


def test_nothing_comes_and_the_time_is_kept() -> None:
    with wire([events(b": still here\n\n"), b""]) as server, follower(server.url) as following:
        began = time.monotonic()
        assert following.next(0.2) is None
        assert 0.15 < time.monotonic() - began < 5


def test_a_refusal_is_reported_and_not_tried_again() -> None:
    refusal = answer(b'{"code":"not_found","message":"there is no workload default/x"}', "404 Not Found")
    with wire([refusal]) as server, follower(server.url) as following, pytest.raises(ApiError) as caught:
        following.next(10)
    assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_a_server_that_stays_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.client.stream.PATIENCE_S", 0.1)
    with wire() as server:
        pass
    with follower(server.url) as following, pytest.raises(Unreachable):
        following.next(10)


def test_many_streams_are_read_in_one_place() -> None:
    one, two = events(b"data: one\n\n"), events(b"data: two\n\n")
    with wire([one, b""]) as first, wire([two, b""]) as second:
        following = [follower(first.url), follower(second.url)]
        seen = [next_of(following, 10), next_of(following, 10)]
        assert sorted(found[1].data for found in seen if found) == ["one", "two"]
        for other_follower in following:
            other_follower.close()


@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    yield
    for fd in opened:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
def test_a_program_with_many_open_files_follows_a_stream() -> None:
    with wire([events(b"data: one\n\n")]) as server, follower(server.url) as following:
        found = following.next(10)
        assert found is not None and found.data == "one"
        assert following.stream is not None and following.stream.sock.fileno() > 1_023


def test_a_log_is_bytes_attempts_and_an_end() -> None:
    report = (
        b'id: 1.2\ndata: /wA=\n\nevent: attempt\ndata: {"attempt":2,"node":"n","message":"lost"}\n\nid: 2.0\n\n'
        b'event: end\ndata: {"state":"failed","attempt":2,"message":"exit code 3","exit_code":3,"signal":null}\n\n'
    )
    with wire([events(report)]) as server:
        log = follower(server.url, LogFollower)
        assert isinstance(log, LogFollower)
        assert log.piece(10) == b"\xff\x00"
        assert log.piece(10) == AttemptView(2, "n", "lost")
        assert log.piece(10) == EndingView("failed", 2, "exit code 3", 3, None)
        log.close()
