"""roost reserve and roost reservations, typed at a server that has no nodes, and what they ask of it."""

import json

import pytest

from roost.cli.common.exit_codes import FAILED, USAGE
from roost.cli.sharing.reservations import _end
from tests.cli.conftest import Type


def test_without_any_it_says_how_to_make_one(typed: Type) -> None:
    result = typed("reservations")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "`roost reserve NAME --project P --nodes COUNT`" in result.stderr
    assert json.loads(typed("reservations", "--json").stdout) == []


def test_what_cannot_be_reserved_fails_with_words(typed: Type) -> None:
    result = typed("reserve", "r", "--project", "web", "--node", "missing")
    assert (result.exit_code, "there is no node missing" in result.stderr) == (FAILED, True)
    result = typed("reserve", "r", "--project", "web", "--nodes", "2", "--from", "1h", "--for", "2h")
    assert (result.exit_code, "0 can be reserved then" in result.stderr) == (FAILED, True)
    assert typed("reservations", "cancel", "r").exit_code == FAILED


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (("--node", "a"), "--project"),
        (("--project", "web"), "--nodes COUNT"),
        (("--project", "web", "--node", "a", "--nodes", "1"), "--nodes COUNT"),
        (("--project", "web", "--node", "a", "--pool", "ci"), "pool"),
        (("--project", "web", "--nodes", "0"), "count"),
        (("--project", "web", "--node", "a", "--from", "soon"), "start"),
        (("--project", "web", "--node", "a", "--from", "soon", "--for", "1h"), "--from"),
        (("--project", "web", "--node", "a", "--from", "2030-01-31T18:00", "--for", "1h"), "time zone"),
        (("--project", "web", "--node", "a", "--for", "long"), "--for"),
        (("--project", "web", "--node", "a", "--for", "0s"), "end"),
        (("--project", "web", "--node", "a", "--from", "9999-12-31T00:00Z", "--for", "300d"), "--for"),
    ],
)
def test_wrong_words_are_wrong_usage(typed: Type, message: tuple[str, ...], text: str) -> None:
    result = typed("reserve", "r", *message)
    assert (result.exit_code, text in result.stderr) == (USAGE, True), result.stderr


@pytest.mark.parametrize(
    ("start", "length", "end"),
    [
        (None, None, None),
        ("1h", None, None),
        (None, "2h", "7200000ms"),
        ("30m", "2h", "9000000ms"),
        ("2030-01-31T23:00+01:00", "2h", "2030-02-01T00:00:00+00:00"),
    ],
)
def test_how_long_counts_from_the_start(start: str | None, length: str | None, end: str | None) -> None:
    assert _end(start, length) == end
