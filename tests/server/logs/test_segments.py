"""Segments of logs: their keys, their chain without gaps, and their bytes with times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.server.logs.codec import DamagedSegment, decode, encode
from roost.server.logs.segments import Segment, Stamp, chain, covering, read_key

LOG = "web/build/7/0.1"


def test_a_key_names_its_log_range_and_time() -> None:
    segment = Segment(1 << 20, (1 << 20) + 5, 1_700_000_000_000)
    assert segment.key(LOG) == f"{LOG}/100000-100005-18bcfe56800"
    assert read_key(segment.key(LOG)) == segment
    assert read_key(f"logs.d/{segment.key(LOG)}") == segment
    assert read_key(f"{LOG}/other") is None


@pytest.mark.parametrize("ranges, expected", [
    ([], []),
    ([(0, 10), (10, 20)], [(0, 10), (10, 20)]),
    ([(10, 20), (0, 10)], [(0, 10), (10, 20)]),
    ([(0, 10), (11, 20)], [(0, 10)]),
    ([(5, 10)], []),
    ([(0, 10), (0, 15), (10, 20)], [(0, 15), (10, 20)]),
    ([(0, 10), (2, 8), (8, 30), (10, 20)], [(0, 10), (8, 30)]),
])  # fmt: skip
def test_a_chain_has_no_gap(ranges: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    found = chain([Segment(start, end, 0) for start, end in ranges])
    assert [(start, end) for start, end, _ in found] == expected


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=12))
def test_every_byte_of_a_chain_is_covered(ranges: list[tuple[int, int]]) -> None:
    segments = [Segment(start, start + length, 0) for start, length in ranges]
    found = chain(segments)
    end = found[-1].end if found else 0
    for offset in range(60):
        segment = covering(found, offset)
        assert (segment is not None) == (offset < end)
        assert segment is None or segment.start <= offset < segment.end
    has = {offset for segment in segments for offset in range(segment.start, segment.end)}
    assert end not in has


@given(st.binary(max_size=1_000))
def test_bytes_and_times_come_back(data: bytes) -> None:
    stamps = [Stamp(7, 1_000), Stamp(90, 2_000)]
    assert decode(Segment(7, 7 + len(data), 0), encode(data, stamps)) == (data, stamps)


def test_damage_is_noticed() -> None:
    stored = encode(b"x" * 100, [])
    for bad in (b"", b"other", stored[:-1], stored[:-2] + b"!" + stored[-1:]):
        with pytest.raises(DamagedSegment):
            decode(Segment(0, 100, 0), bad)
    with pytest.raises(DamagedSegment, match="100 bytes in place of 99"):
        decode(Segment(0, 99, 0), stored)
