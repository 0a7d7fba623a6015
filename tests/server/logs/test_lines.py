"""Lines of logs: by time, by text and from the end, over segments and parts, with the times when they came."""

import pytest

from roost.blobs.log_memory import MemoryLogs
from roost.blobs.object_memory import MemoryObjects
from roost.server.logs import lines as log_lines
from roost.server.logs.hub import LogHub
from roost.server.logs.lines import LineFilter, last_lines, next_lines, offset_since
from roost.server.logs.masking import Masker
from tests.server.logs.test_hub import LOG, until

SIZE = 100 * 8


async def a_log(monkeypatch: pytest.MonkeyPatch) -> LogHub:
    """A hundred lines of eight bytes, one each second; most of them in segments of 128 bytes."""
    monkeypatch.setattr(log_lines, "PIECE_BYTES", 50)  # lines begin in one piece and end in the next
    hub = LogHub(MemoryLogs(), MemoryObjects(), segment_bytes=128)
    for number in range(100):
        hub.machine.append(LOG, number * 8, b"line %02d\n" % number, 0, 1_000 * (number + 1))
    hub._seal_more()
    await until(lambda: hub.durable(LOG) == 768)
    return hub


async def test_lines_come_in_order_with_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = await a_log(monkeypatch)
    found = await next_lines(hub, LOG, 0, SIZE, LineFilter(b""), 1_000)
    assert [line.data for line in found.lines] == [b"line %02d\n" % number for number in range(100)]
    assert [line.at_ms for line in found.lines] == [1_000 * (number + 1) for number in range(100)]
    assert found.next == SIZE


async def test_a_page_is_continued_at_its_next(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = await a_log(monkeypatch)
    first = await next_lines(hub, LOG, 0, SIZE, LineFilter(b"5"), 7)
    assert [line.data[5:7] for line in first.lines] == [b"05", b"15", b"25", b"35", b"45", b"50", b"51"]
    more = await next_lines(hub, LOG, first.next, SIZE, LineFilter(b"5"), 7)
    assert [line.data[5:7] for line in more.lines][:2] == [b"52", b"53"]


async def test_a_search_is_bounded_and_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = await a_log(monkeypatch)
    monkeypatch.setattr(log_lines, "SCAN_BYTES_MAX", 100)
    found = await next_lines(hub, LOG, 0, SIZE, LineFilter(b"nothing has this"), 7)
    assert not found.lines and 100 <= found.next < 200


@pytest.mark.parametrize("count, text, expected", [
    (3, b"", ["97", "98", "99"]), (0, b"", []), (2, b"4", ["84", "94"]), (500, b"9", ["09", "19"]),
])  # fmt: skip
async def test_the_last_lines_are_searched_from_the_end(
    monkeypatch: pytest.MonkeyPatch, count: int, text: bytes, expected: list[str]
) -> None:
    hub = await a_log(monkeypatch)
    found = await last_lines(hub, LOG, 0, SIZE, LineFilter(text), count)
    assert [line.data[5:7].decode() for line in found.lines][: len(expected)] == expected
    assert found.next == SIZE and len(found.lines) <= count
    assert [line.at_ms for line in found.lines] == [1_000 * (line.offset // 8 + 1) for line in found.lines]


@pytest.mark.parametrize(
    "since_ms, number", [(0, 0), (1_000, 0), (1_001, 1), (50_000, 49), (99_500, 99), (100_001, 100)]
)
async def test_lines_since_a_time_begin_with_the_first_that_came_then(
    monkeypatch: pytest.MonkeyPatch, since_ms: int, number: int
) -> None:
    hub = await a_log(monkeypatch)
    assert await offset_since(hub, LOG, since_ms, SIZE) == number * 8


async def test_the_rest_of_a_line_that_began_before_is_left_out() -> None:
    hub = LogHub(MemoryLogs(), MemoryObjects())
    hub.machine.append(LOG, 0, b"one\ntwo", 0, 1_000)
    hub.machine.append(LOG, 7, b" more\nthree\n", 0, 2_000)
    assert await offset_since(hub, LOG, 2_000, 19) == 13


def test_only_newlines_end_lines() -> None:
    assert LineFilter().split(b"a\rb\r\nc\x0bd\n", 5) == [(5, b"a\rb\r\n"), (10, b"c\x0bd\n")]
    assert LineFilter().split(b"a\n\nb", 0) == [(0, b"a\n"), (2, b"\n"), (3, b"b")]


def test_text_is_searched_in_what_is_shown() -> None:
    masker = Masker([b"hunter2"])
    assert LineFilter(b"", masker).split(b"a\nis hunter2\n", 0) == [(0, b"a\n"), (2, b"is ***\n")]
    assert LineFilter(b"hunter", masker).split(b"is hunter2\n", 0) == [], "a search finds out nothing"
