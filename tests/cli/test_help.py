"""Help that teaches: every command has examples and says what comes next; wrong names are met with the right ones."""

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from roost import __version__
from roost.cli import COMMANDS, root
from roost.cli.common.exit_codes import USAGE

NAMES = [name for section in COMMANDS.values() for name in section]
WRITTEN_ELSEWHERE = {"sim", "bench"}  # registered here, written by their owners


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command of ours, groups and what is in them."""
    context = click.Context(root)
    for name in NAMES:
        if name in WRITTEN_ELSEWHERE:
            continue
        command = root.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", other_command) for inner, other_command in command.commands.items())


@pytest.mark.parametrize(
    ("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_has_examples_and_says_what_comes_next(name: str, command: click.Command) -> None:
    result = CliRunner().invoke(root, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"roost {name}" in result.stdout.partition("Examples:")[2]
    assert "Next" in result.stdout.partition("Examples:")[2]
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help or option.name == "until", option.name


@pytest.mark.parametrize(
    ("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_choice_is_taken_as_it_is_shown(name: str, command: click.Command) -> None:
    """click takes the members of an enumeration by their names, which are in capitals."""
    for option in command.params:
        if isinstance(option.type, click.Choice):
            assert [type(choice) for choice in option.type.choices] == [str] * len(option.type.choices), option.name


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_there_and_documented(name: str) -> None:
    assert CliRunner().invoke(root, [name, "--help"]).exit_code == 0
    assert f"  {name} " in CliRunner().invoke(root, ["--help"]).stdout


def test_version() -> None:
    assert CliRunner().invoke(root, ["--version"]).stdout == f"roost, version {__version__}\n"


@pytest.mark.parametrize(("wrong", "right"), [("log", "logs"), ("stats", "status"), ("applay", "apply")])
def test_a_wrong_command_is_met_with_the_right_one(wrong: str, right: str) -> None:
    result = CliRunner().invoke(root, [wrong])
    assert result.exit_code == USAGE
    assert f"'{right}'" in result.stderr


def test_a_wrong_option_is_met_with_the_right_one() -> None:
    result = CliRunner().invoke(root, ["run", "--timout", "3", "--", "true"])
    assert result.exit_code == USAGE
    assert "--timeout" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(root, ["completion", shell])
    assert result.exit_code == 0
    assert "_ROOST_COMPLETE" in result.stdout


def test_completion_knows_commands() -> None:
    env = {**os.environ, "_ROOST_COMPLETE": "bash_complete", "COMP_WORDS": "roost sta", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-P", "-m", "roost"], env=env, capture_output=True, text=True)
    assert done.stdout == "plain,status\n"


@pytest.mark.parametrize(
    ("message", "heavy"),
    [
        (["--help"], {"msgspec", "http.client", "rich", "numpy", "ryaml", "roost.core", "asyncio"}),
        (
            ["ps"],
            {"importlib.resources", "rich", "numpy", "ryaml", "roost.core", "asyncio", "roost.server", "subprocess"},
        ),
        (
            ["run", "true"],
            {"importlib.resources", "rich", "numpy", "ryaml", "roost.core", "asyncio", "roost.server", "subprocess"},
        ),
        (["up", "--help"], {"msgspec", "rich", "numpy", "roost.core", "asyncio", "roost.server"}),
    ],
)
def test_commands_import_only_what_they_need(message: list[str], heavy: set[str]) -> None:
    script = f"""
import sys
from roost.cli import root
try:
    root({message!r}, standalone_mode=False)
except Exception:
    pass
print(*sys.modules, file=sys.stderr)
"""
    env = {**os.environ, "ROOST_CONFIG": "", "ROOST_URL": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert "roost.cli" in done.stderr.split()
    assert heavy & set(done.stderr.split()) == set()


@pytest.mark.parametrize(
    ("name", "command"), [("roost", root), *commands()], ids=lambda value: value if isinstance(value, str) else ""
)
def test_help_fits_80_columns(name: str, command: click.Command) -> None:
    arguments = [] if name == "roost" else name.split()
    result = CliRunner(env={"COLUMNS": "80"}).invoke(root, [*arguments, "--help"])
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
    assert "docs/" not in result.stdout, "an installed package has no docs"


def test_a_long_example_keeps_its_explanation_beside_it() -> None:
    lines = CliRunner(env={"COLUMNS": "80"}).invoke(root, ["ci", "--help"]).stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "roost ci check" in line)
    assert lines[at].endswith("what would run, in order; needs no")
    assert lines[at + 1].split() == ["server"]


@pytest.mark.parametrize("arguments", ["apply -f ", "plan -f ", "ci run ", "ci check "])
def test_completion_leaves_file_names_to_the_shell(arguments: str) -> None:
    given = f"roost {arguments}"
    env = {**os.environ, "_ROOST_COMPLETE": "bash_complete", "COMP_WORDS": given, "COMP_CWORD": str(len(given.split()))}
    done = subprocess.run([sys.executable, "-P", "-m", "roost"], env=env, capture_output=True, text=True)
    assert done.stdout == "file,\n"
