"""Other releases of Roost, made from this source: the one before and the one after it, and the newest that has a tag.

A release differs in its version and in the numbers that it writes down or sends. Each is a copy of the source with
other constants, or the source of a tag; processes of it find it through PYTHONPATH.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"


class Constant(NamedTuple):
    """A number in the source. `pattern` has it as its second group."""

    file: str
    pattern: str


CONSTANTS = {
    "agents": Constant("model/protocol.py", r"^(PROTOCOL = )(\d+)"),
    "servers": Constant("server/cluster/forwarding.py", r"^(PROTOCOL = )(\d+)"),
    "keeper": Constant("keeper/socket.py", r"^(PROTOCOL = )(\d+)"),
    "records": Constant("core/state/records.py", r"^(FORMAT = )(\d+)"),
    "history": Constant("server/history/database.py", r"^(VERSION = )(\d+)"),
}
VERSION = Constant("__init__.py", r'^(__version__ = ")([^"]+)')
WIRE = ("agents", "servers")  # what a release may change whose store the one before can read


class Release(NamedTuple):
    version: str
    source: Path  # for PYTHONPATH
    numbers: dict[str, int]  # by the names of CONSTANTS; 0: the release has no such number

    def differs(self, other: "Release", name: str) -> bool:
        return self.numbers[name] != other.numbers[name]


def this_release() -> Release:
    return _read(SOURCE)


def made_release(folder: Path, version: str, change: int, names: Iterable[str] = CONSTANTS) -> Release:
    """A copy of this source with another version, whose numbers of these names are changed by so much."""
    shutil.copytree(SOURCE / "roost", folder / "roost")  # with compiled files: compiling takes seconds
    _replace(folder, VERSION, lambda found: f"{found[1]}{version}")
    for name in names:
        _replace(folder, CONSTANTS[name], lambda found: f"{found[1]}{int(found[2]) + change}")
    return _read(folder)


def newest_tag() -> str:
    """Of the newest release; empty: none has a tag yet, or this is no clone."""
    return subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()


def tagged_release(folder: Path, tag: str) -> Release:
    archive = subprocess.run(["git", "archive", tag, "src"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return _read(folder / "src")


def _read(source: Path) -> Release:
    version = _find(source, VERSION)
    assert version is not None
    numbers = {name: _find(source, constant) for name, constant in CONSTANTS.items()}
    return Release(version[2], source, {name: int(found[2]) if found else 0 for name, found in numbers.items()})


def _find(source: Path, constant: Constant) -> "re.Match[str] | None":
    file = source / "roost" / constant.file
    return re.search(constant.pattern, file.read_text(), re.MULTILINE) if file.exists() else None


def _replace(source: Path, constant: Constant, value: Callable[[re.Match[str]], str]) -> None:
    file = source / "roost" / constant.file
    text, count = re.subn(constant.pattern, value, file.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1, f"{constant.file} has no line for {constant.pattern}"
    file.write_text(text)
