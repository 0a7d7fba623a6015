"""What every log store promises. Its test file inherits from LogsContract and gives the fixture `blobs`."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roost.ports.logs import KEY_BYTES_MAX, Logs

KEY = "web/unit-tests/0/1"
FOLDER = "web/unit-tests/0"


class LogsContract:
    @pytest.fixture
    def blobs(self) -> Logs:
        raise NotImplementedError

    def test_what_was_appended_is_read(self, blobs: Logs) -> None:
        assert blobs.append(KEY, 0, b"one\n") == 4
        assert blobs.append(KEY, 4, b"\x00\xfftwo") == 9
        assert blobs.read(KEY, 0, 100) == b"one\n\x00\xfftwo"
        assert blobs.read(KEY, 2, 3) == b"e\n\x00"
        assert blobs.read(KEY, 9, 100) == b""
        assert blobs.read(KEY, 1000, 100) == b""
        assert blobs.read(KEY, 0, 0) == b""
        assert blobs.size(KEY) == 9

    def test_what_is_there_already_is_skipped(self, blobs: Logs) -> None:
        blobs.append(KEY, 0, b"abcdef")
        assert blobs.append(KEY, 0, b"abcdef") == 6
        assert blobs.append(KEY, 2, b"cd") == 6
        assert blobs.append(KEY, 4, b"efgh") == 8
        assert blobs.append(KEY, 0, b"XX") == 8
        assert blobs.read(KEY, 0, 100) == b"abcdefgh"

    def test_a_gap_is_refused_by_saying_where_to_go_on(self, blobs: Logs) -> None:
        blobs.append(KEY, 0, b"abc")
        assert blobs.append(KEY, 4, b"e") == 3
        assert blobs.read(KEY, 0, 100) == b"abc"

    def test_a_gap_before_the_beginning_makes_no_blob(self, blobs: Logs) -> None:
        assert blobs.append(KEY, 1, b"b") == 0
        assert blobs.size(KEY) is None

    def test_what_is_not_there_has_no_size_and_no_bytes(self, blobs: Logs) -> None:
        assert blobs.size(KEY) is None
        assert blobs.read(KEY, 0, 100) == b""
        assert blobs.size(KEY) is None

    def test_nothing_appended_at_the_beginning_is_an_empty_blob(self, blobs: Logs) -> None:
        assert blobs.append(KEY, 0, b"") == 0
        assert blobs.size(KEY) == 0

    def test_dropped_is_gone_and_may_begin_again(self, blobs: Logs) -> None:
        blobs.append(KEY, 0, b"old")
        blobs.append("web/unit-tests/1/1", 0, b"stays")
        blobs.drop(FOLDER)
        blobs.drop(FOLDER)
        assert blobs.size(KEY) is None
        assert blobs.append(KEY, 0, b"new") == 3
        assert blobs.read(KEY, 0, 100) == b"new"
        assert blobs.read("web/unit-tests/1/1", 0, 100) == b"stays"

    def test_keys_do_not_get_in_each_others_way(self, blobs: Logs) -> None:
        keys = [
            "a",
            "a/b",
            "a/b/c",
            "a/B",
            "a b",
            "a%20b",
            "a+log",
            "a+log/b",
            "a/b+log",
            "ä/☃",
            ".a/..b/c.",
            "a\\b",
            "-a",
        ]
        for key in keys:
            blobs.append(key, 0, key.encode())
        assert [blobs.read(key, 0, 100) for key in keys] == [key.encode() for key in keys]
        blobs.drop("a/b")
        assert [key for key in keys if blobs.size(key) is None] == ["a/b", "a/b/c"]
        assert [log.key for log in blobs.found()] == sorted({*keys} - {"a/b", "a/b/c"})

    def test_a_log_and_all_below_it_go_and_nothing_beside_it(self, blobs: Logs) -> None:
        keys = ["web/a", "web/a/1", "web/a/1/0.1", "web/a/1/1.1", "web/a/10/0.1", "web/a/2/0.1", "web/a-1/1/0.1"]
        for key in keys:
            blobs.append(key, 0, b"x")
        blobs.drop("web/a/1")
        blobs.drop("web/a/1")
        assert [key for key in keys if blobs.size(key) is None] == ["web/a/1", "web/a/1/0.1", "web/a/1/1.1"]
        assert blobs.append("web/a/1/0.1", 0, b"again") == 5
        blobs.drop("web/a")
        assert [key for key in keys if blobs.size(key) is not None] == ["web/a-1/1/0.1"]
        assert [(log.key, log.size) for log in blobs.found()] == [("web/a-1/1/0.1", 1)]

    @pytest.mark.parametrize(
        "key",
        ["", "/", "/etc/passwd", "a/", "a//b", "..", "../a", "a/../b", "a/..", "./a", "a/.", "a\0b", "a\nb", "\x7f"]
        + ["a" * (KEY_BYTES_MAX + 1), "ä" * (KEY_BYTES_MAX // 2 + 1), "\ud800"],
    )
    def test_a_key_that_leads_elsewhere_is_refused(self, blobs: Logs, key: str) -> None:
        for ask in (
            blobs.size,
            blobs.drop,
            lambda key: blobs.append(key, 0, b"x"),
            lambda key: blobs.read(key, 0, 1),
        ):
            with pytest.raises(ValueError):
                ask(key)

    def test_negative_numbers_are_refused(self, blobs: Logs) -> None:
        blobs.append(KEY, 0, b"abc")
        for ask in (
            lambda: blobs.append(KEY, -1, b"x"),
            lambda: blobs.read(KEY, -1, 1),
            lambda: blobs.read(KEY, 0, -1),
        ):
            with pytest.raises(ValueError):
                ask()
        assert blobs.read(KEY, 0, 100) == b"abc"

    # Every example begins with a drop, and every kind of blobs inherits the test: both are meant.
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
    @given(
        whole=st.binary(max_size=50),
        sends=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=20),
    )
    def test_however_often_parts_are_sent_it_is_a_beginning_of_the_whole(
        self, blobs: Logs, whole: bytes, sends: list[tuple[int, int]]
    ) -> None:
        blobs.drop(FOLDER)
        size = 0
        for offset, length in sends:
            chunk = whole[offset : offset + length]
            if offset <= size:
                size = max(size, offset + len(chunk))
            assert blobs.append(KEY, offset, chunk) == size
        assert blobs.read(KEY, 0, 100) == whole[:size]
