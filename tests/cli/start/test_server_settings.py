"""What an operator can say about the queue when a server starts: flags, variables, and what is refused."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from roost.cli import root
from roost.cli.common.exit_codes import USAGE
from tests.cli.serving import serving

NAMES = ("SCHEDULING_STRATEGY", "ROOST_BACKFILL_AFTER", "ROOST_PREEMPT_MARGIN")
COMMANDS = [("server", "--store", "memory"), ("up", "--agents", "0")]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def settings(home: Path, *message: str) -> tuple[str, int, int]:
    with serving(home, *message) as served, served.client() as client:
        status = client.status()
        answer = served.roost("status").stdout.decode()
        assert "backfill reservation after" in answer
        return status.strategy, status.backfill_after_ms, status.preempt_margin


@pytest.mark.parametrize("command", COMMANDS, ids=lambda message: message[0])
def test_flags_go_before_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    for name, value in zip(NAMES, ("best_fit", "2m", "35"), strict=True):
        monkeypatch.setenv(name, value)
    assert settings(tmp_path, *command) == ("best_fit", 120_000, 35)
    flags = ("--strategy", "first_fit", "--backfill-after", "0", "--preempt-margin", "0")
    assert settings(tmp_path, *command, *flags) == ("first_fit", 0, 0)


def test_the_defaults(tmp_path: Path) -> None:
    assert settings(tmp_path, *COMMANDS[0]) == ("least_loaded", 30_000, 20)


@pytest.mark.parametrize("command", ["server", "up"])
@pytest.mark.parametrize(
    "message",
    [("--backfill-after", "soon"), ("--backfill-after", "-1"), ("--preempt-margin", "101"), ("--preempt-margin", "x")],
)
def test_what_cannot_be_is_wrong_usage(tmp_path: Path, command: str, message: tuple[str, ...]) -> None:
    result = CliRunner().invoke(root, [command, "--data", str(tmp_path), *message])
    assert result.exit_code == USAGE
    assert message[0] in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_strategy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULING_STRATEGY", "psychic")
    result = CliRunner().invoke(root, ["server", "--data", str(tmp_path)])
    assert result.exit_code == USAGE
    assert "psychic" in result.stderr


@pytest.mark.parametrize("scheme", ["postgre", "postgresql+x", "postgres_ql", "etcdd"])
def test_a_mistyped_store_does_not_print_its_password(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://roost:hush-4711@db/roost"
    for arguments in (("server", "--data", str(tmp_path), "--store"), ("store", "check"), ("doctor", "--store")):
        result = CliRunner().invoke(root, [*arguments, url])
        assert result.exit_code == USAGE, result.output
        assert "postgresql://USER@HOST/DATABASE" in result.output
        assert "hush" not in result.output
