"""roost maintenance: begun, shown, ended; typed at a server that has no nodes."""

import json
from collections.abc import Iterator

import pytest

from roost.cli.common.exit_codes import NOT_PLACED, USAGE
from tests.cli.conftest import Type


@pytest.fixture(autouse=True)
def ended(typed: Type) -> Iterator[None]:
    """Other tests type at the same server."""
    yield
    assert typed("maintenance", "off").exit_code == 0


def test_on_shown_and_off(typed: Type) -> None:
    assert typed("maintenance").stdout == "there is no maintenance\n"
    assert "Maintenance:" not in typed("status").stdout
    result = typed("maintenance", "on", "--reason", "new switches", "--for", "2h")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "maintenance since now, until " in result.stderr and ": new switches" in result.stderr
    assert "new switches" in typed("maintenance").stdout
    assert "Maintenance:  since" in typed("status").stdout
    answer = json.loads(typed("maintenance", "--json").stdout)
    assert (answer["on"], answer["until_ms"] - answer["since_ms"]) == (True, 7_200_000)
    assert typed("run", "-d", "--name", "held-up", "--", "true").exit_code == NOT_PLACED
    assert "new switches" in typed("why", "held-up").stdout
    typed("cancel", "held-up")
    assert "there is no maintenance" in typed("maintenance", "off").stderr
    assert json.loads(typed("status", "--json").stdout)["maintenance"]["on"] is False


def test_wrong_words_are_wrong_usage_and_begin_nothing(typed: Type) -> None:
    assert typed("maintenance", "on").exit_code == USAGE
    assert typed("maintenance", "on", "--reason", "").exit_code == USAGE
    assert typed("maintenance", "on", "--reason", "x", "--for", "soon").exit_code == USAGE
    assert typed("maintenance").stdout == "there is no maintenance\n"


def test_nodes_that_are_not_there(typed: Type) -> None:
    for arguments in (("cordon", "missing"), ("uncordon", "missing"), ("drain", "missing", "--dry-run")):
        result = typed(*arguments)
        assert result.exit_code == 1
        assert "there is no node missing" in result.stderr
    assert typed("drain", "missing", "--resume").exit_code == USAGE, "that is `roost uncordon`"
