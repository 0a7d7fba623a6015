"""A stranger at a terminal of 80 columns: the README's tour and the tutorials typed as they stand, the output compared.

Every command of a page is typed in order. Where the page shows output, the terminal must show the same, but for what
differs each time: times, ids, nodes, ports, and the order of what runs at once.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.serving import end_all
from tests.components.terminal import Terminal, terminals

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *(f"docs/tutorial/first-{name}.md" for name in ("job", "service", "pipeline"))]
NOT_TYPED = ("make ", ". ", "roost --version", "roost up")  # done before the terminals are opened
NOT_PLACED = 4  # the exit code of work that is pending, as some pages want it
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
STARTED = re.compile(r"roost: [a-z]+ runs on node-\d")
RUN_ID = re.compile(r"\b[0-9a-f]{6}\b")
VARYING = (
    (re.compile(r"\b(less than )?\d+(\.\d+)?([KMGT]i)?B\b"), "SIZE"),
    (RUN_ID, "ID"),  # before times: 81427d is no number of days
    (re.compile(r"\b(\d+(\.\d+)?(ms|s|m|h|d))+( ago)?|\bnow\b"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\bnode-\d\b"), "NODE"),
    (re.compile(r"\b\d{5}\b"), "PORT"),
    (re.compile(r"\b\d+(\.\d+)? cpu\b"), "CPU"),
    (re.compile(r"\b\d\.\d{3}\b"), "SCORE"),
    (re.compile(r"\s+"), " "),
)


class Step(NamedTuple):
    command: str
    output: list[str]  # as the page shows it; empty: it shows none


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line.removeprefix("$ "), []))
            else:
                found[-1].output.append(line)
    return [step for step in found if not step.command.startswith(NOT_TYPED)]


def same_form(lines: list[str]) -> list[str]:
    """Lines without what differs each time, in one order. A start that is over at once may go unreported."""
    lines = [line for line in lines if not STARTED.fullmatch(line)]
    for pattern, name in VARYING:
        lines = [pattern.sub(name, line) for line in lines]
    return sorted(line.strip() for line in lines)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """The second terminal; `roost up` runs in the first one, and is stopped with Ctrl-C in the end."""
    home, checkout = tmp_path / "home", tmp_path / "checkout"
    home.mkdir()
    checkout.mkdir()  # what a page writes stays out of the real one
    for path in ROOT.iterdir():
        (checkout / path.name).symlink_to(path)
    try:
        with terminals(tmp_path, home, checkout, 2) as (first, second):
            first.send("-l", "roost up --agents 3 --listen 127.0.0.1:0 --lease 60000")
            first.send("Enter")
            first.shows("Ctrl-C stops it.")
            second.type("until [ $(roost nodes | grep -c ready) = 3 ]; do sleep 0.2; done")
            yield second
            first.send("C-c")
            first.shows("roost: stopping node-1, node-2, node-3 and what runs there")
            first.waits()
    finally:
        end_all(home / ".local" / "share" / "roost")


@pytest.mark.serial
@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_typed_and_shows_what_it_says(terminal: Terminal, page: str) -> None:
    run = ""  # the id of the run that the page shows, and that of the run here
    for step in steps(page):
        if step.command.startswith("curl") and shutil.which("curl") is None:
            continue
        shown = RUN_ID.search(step.command)
        typed = terminal.type(step.command.replace(shown[0], run) if shown else step.command)
        text = "\n".join(typed.lines)
        if found := re.search(r"run greeter-([0-9a-f]{6})", text):
            run = found[1]
        assert typed.code in (0, NOT_PLACED), f"{step.command}: {typed}"
        assert "Traceback" not in text, step.command
        rows = [line for line in typed.wrapped if "  " in line.strip() and not step.command.startswith("roost doctor")]
        assert rows == [], f"{step.command}: a table is wider than the terminal; only sentences may be"
        if step.output:
            assert same_form(typed.lines) == same_form(step.output), f"{step.command}:\n{text}"


def test_the_pages_have_commands_and_output() -> None:
    found = [step for page in PAGES for step in steps(page)]
    assert len(found) >= 35
    assert sum(bool(step.output) for step in found) >= 15
