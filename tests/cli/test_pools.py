"""roost pools: strategy and overcommit from the command line, typed at a server that has no nodes."""

import json
from itertools import count

import pytest

from roost.cli.outcome import FAILED, USAGE
from tests.cli.conftest import Type

NUMBERS = count()


@pytest.fixture
def name() -> str:
    return f"pool-{next(NUMBERS)}"


def test_set_list_and_unset(typed: Type, name: str) -> None:
    result = typed("pools", "set", name, "--strategy", "best_fit", "--overcommit", "cpu=1.5")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"pool {name}: strategy best_fit, overcommit cpu 1.5" in result.stderr
    row = next(line for line in typed("pools").stdout.splitlines() if line.split()[0] == name)
    assert row.split() == [name, "0", "best_fit", "-", "-", "-", "cpu", "1.5"]
    assert name in typed("pools", "unset", name).stderr
    assert name not in typed("pools").stdout
    assert typed("pools", "unset", name).exit_code == FAILED


def test_what_is_not_given_stays(typed: Type, name: str) -> None:
    typed("pools", "set", name, "--strategy", "best_fit", "--overcommit", "cpu=1.5")
    set_ = json.loads(typed("pools", "set", name, "--overcommit", "memory=2", "--json").stdout)
    assert (set_["strategy"], set_["overcommit"]) == ("best_fit", {"cpu": 1.5, "memory": 2.0})
    set_ = json.loads(typed("pools", "set", name, "--strategy", "default", "--json").stdout)
    assert (set_["strategy"], set_["overcommit"]) == ("", {"cpu": 1.5, "memory": 2.0})
    assert json.loads(typed("pools", "unset", name, "--json").stdout) == {"name": name}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--strategy", "psychic"), "strategy"),
        (("--overcommit", "cpu=lots"), "--overcommit cpu"),
        (("--overcommit", "cpu=0.5"), "overcommit.cpu"),
        (("--overcommit", "cpu=nan"), "overcommit.cpu"),
        (("--overcommit", "disk=1"), "overcommit.disk"),
        (("--overcommit", "1.5"), "NAME=VALUE"),
        ((), "--strategy"),
    ],
)
def test_wrong_values_are_wrong_usage_and_set_nothing(
    typed: Type, name: str, words: tuple[str, ...], said: str
) -> None:  # fmt: skip
    result = typed("pools", "set", name, *words)
    assert result.exit_code == USAGE
    assert said in result.stderr
    assert name not in typed("pools", "--json").stdout
