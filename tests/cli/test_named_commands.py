"""Every command that docs, examples, help texts and messages name exists, with the options that they give it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from roost.cli import root

ROOT = Path(__file__).resolve().parents[2]
QUOTED = re.compile(r"`(roost [a-z][^`\n]+)`")
TYPED = re.compile(r"^(?:\s*\$ |\s+)(?:[A-Z_]+=\S+ )*(roost [a-z][^\n]+)$", re.MULTILINE)
BEHIND = re.compile(r"\s{2,}|\s#|\s[|<>]\s|;|&&|\)")  # what follows a command in its line
FORMATS = ("backup", "journal")  # `roost backup 1` is the first line of a file


def files() -> Iterator[Path]:
    for folder, pattern in (("docs", "*.md"), ("examples", "*.yaml"), ("examples", "*.md"), ("src/roost", "*.py")):
        yield from (ROOT / folder).rglob(pattern)
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md"))


def named(text: str) -> set[str]:
    found = QUOTED.findall(text) + TYPED.findall(text)
    return {BEHIND.split(line)[0].strip() for line in found if "[OPTIONS]" not in line}


def fault(line: str) -> str:
    """What is wrong with a command; empty: nothing."""
    try:
        _, *arguments = shlex.split(line)
    except ValueError:  # half of a quoted argument
        return ""
    command: click.Command = root
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        found = command.get_command(click.Context(command), arguments[0])
        if found is None:
            return f"there is no command {arguments[0]}"
        command = found
        arguments = arguments[1:]
    context = click.Context(command, **command.context_settings)
    if not context.allow_interspersed_args:  # what follows the first word belongs to another command
        try:
            command.make_parser(context).parse_args(list(arguments))
        except click.NoSuchOption as error:
            return f"there is no option {error.option_name}"
        except click.UsageError:
            pass
        return ""
    options = {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}
    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    unknown = [word for word in given if word.startswith("--") and re.split(r"[=,.:]", word)[0] not in options]
    return f"there is no option {unknown[0]}" if unknown else ""


def test_named_commands_exist() -> None:
    lines = {(path, line) for path in files() for line in named(path.read_text(encoding="utf-8"))}
    assert len(lines) > 500, "they are found"
    wrong = [
        f"{path.relative_to(ROOT)}: {line}: {message}"
        for path, line in sorted(lines)
        if line.split()[1] not in FORMATS and (message := fault(line))
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "line", ["roost resume node-1", "roost drain node-1 --resume", "roost nodes NAME", "roost run --lr 1 x"]
)
def test_wrong_commands_are_noticed(line: str) -> None:
    assert fault(line)
