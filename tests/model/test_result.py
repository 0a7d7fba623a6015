"""Results as they are written: what is kept as it is, and what is not a result."""

import time

import pytest

from roost.model.limits import RESULT_BYTES_MAX, RESULT_DEPTH_MAX
from roost.model.records.result import Result, ResultProblem, result_of


def nested(depth: int) -> bytes:
    return b"[" * depth + b"1" + b"]" * depth


def test_only_spaces_between_values_are_dropped() -> None:
    written = b'{ "b" : 1.0e2,\n "a":[1, 2.50, "\\u00e9  x"], "big": 123456789012345678901234567890 }\n'
    kept = b'{"b":1.0e2,"a":[1,2.50,"\\u00e9  x"],"big":123456789012345678901234567890}'
    assert result_of(written) == Result(kept, size=len(written))


@pytest.mark.parametrize("data", [b"null", b"0", b'"x"', b"[]", b'{"a":1,"a":2}'])
def test_every_json_is_a_result_and_a_key_may_be_there_twice(data: bytes) -> None:
    assert result_of(data).data == data


@pytest.mark.parametrize(
    "data",
    [
        b"", b" \n", b"{", b"[1,]", b"NaN", b"[Infinity]", b"1e999", b"01", b"'x'", b"[1] 2", b'"\xff"', b'"\x01"',
        b'"\\ud800"', b"\xef\xbb\xbf1", b"9" * 5_000,
    ],
)  # fmt: skip
def test_what_is_not_json_is_not_kept(data: bytes) -> None:
    assert result_of(data) == Result(problem=ResultProblem.NOT_JSON, size=len(data))


def test_size_and_depth_are_bounded() -> None:
    largest = b'"' + b"x" * (RESULT_BYTES_MAX - 2) + b'"'
    assert result_of(largest).data == largest
    assert result_of(largest + b" ").problem == ResultProblem.TOO_LARGE
    assert result_of(nested(RESULT_DEPTH_MAX)).data == nested(RESULT_DEPTH_MAX)
    assert result_of(nested(RESULT_DEPTH_MAX + 1)).problem == ResultProblem.TOO_DEEP
    assert result_of(nested(30_000)).problem == ResultProblem.TOO_DEEP
    wide = b"[" + b",".join([b"[1]"] * 1_000) + b"]"
    assert result_of(wide).data == wide


@pytest.mark.serial
@pytest.mark.parametrize("data", [b'"\\' * 32_768, b'"' * 65_536, b"[" * 65_536, nested(900) * 30, b"[[]," * 16_000])
def test_nothing_that_can_be_written_takes_long(data: bytes) -> None:
    began = time.thread_time()
    result_of(data[:RESULT_BYTES_MAX])
    assert time.thread_time() - began < 0.5
