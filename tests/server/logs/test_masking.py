"""Masking: the same whatever the pieces are, and nothing of a value is shown before it is known to be none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.server.logs.masking import MaskedStream, Masker

VALUES = [b"hunter2", b"abab", b"secret-token\n"]


@pytest.mark.parametrize("data, shown", [
    (b"", b""),
    (b"password=hunter2\n", b"password=***\n"),
    (b"hunter2hunter2 hunter", b"*** hunter"),
    (b"xababab!", b"x***!"),
    (b"secret-token", b"***"),
    (b"\xffhunter2\x00", b"\xff***\x00"),
])  # fmt: skip
def test_values_are_masked_and_nothing_else(data: bytes, shown: bytes) -> None:
    assert Masker(VALUES).mask(data) == shown


def test_lines_of_a_long_value_are_masked_alone_and_short_values_are_not() -> None:
    masker = Masker([b"-----BEGIN\nabcdefghij\nxy\n", b"abc"])
    assert masker.mask(b"got abcdefghij xy abc") == b"got *** xy abc"
    assert not Masker([b"abc"]) and Masker([]).mask(b"abc") == b"abc"


texts = st.lists(
    st.sampled_from([b"hunter2", b"hun", b"ter2", b"ab", b"a", b"b", b"secret-token", b"secret", b"\n", b"x"])
)


@given(texts.map(b"".join), st.lists(st.integers(0, 60)))
def test_pieces_of_any_size_are_the_masked_whole(data: bytes, cuts: list[int]) -> None:
    masker = Masker(VALUES)
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    pieces = list(zip(places, places[1:], strict=False))
    read = [
        masker.mask_between(data[max(0, start - masker.reach) : start], data[start:end], data[end : end + masker.reach])
        for start, end in pieces
    ]
    assert b"".join(read) == masker.mask(data)
    stream = MaskedStream(masker)
    shown = [stream.feed(data[start:end]) for start, end in pieces]
    for count in range(1, len(shown) + 1):
        assert masker.mask(data).startswith(b"".join(shown[:count]))
    assert b"".join(shown) + stream.finish() == masker.mask(data)


def test_the_beginning_of_a_value_is_held_back() -> None:
    stream = MaskedStream(Masker(VALUES))
    assert (stream.feed(b"it is hunt"), stream.held) == (b"it is ", b"hunt")
    assert stream.feed(b"er2!") == b"***!"
    assert stream.feed(b" hunt") == b" " and stream.feed(b"ing") == b"hunting" and stream.finish() == b""
