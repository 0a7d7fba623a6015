"""The script of `roost run train.py --lr 0.1`: a file of this machine, which is sent and run in its work directory."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

# Programs whose first argument that is no option is a script.
INTERPRETERS = re.compile(r"(python|pypy)[0-9.]*|(ba|da|z|k)?sh|Rscript|julia|node|perl|ruby|lua")
NO_SCRIPT = {"-c", "-m", "-e", "-"}  # options behind which there is code, or the name of a module
BY_SUFFIX = {".py": ["python3"], ".sh": ["sh"], ".bash": ["bash"], ".pl": ["perl"], ".rb": ["ruby"], ".R": ["Rscript"]}
SHEBANG_BYTES_MAX = 256  # as much as Linux reads


class Script(NamedTuple):
    path: Path  # of this machine
    to: str  # in the work directory
    argv: list[str]  # that runs it there


def find_script(argv: Sequence[str]) -> Script | None:
    """The file that a command would run and that only this machine has. Raises UsageError.

    An absolute path is one of the node: of its system, or of a file system that all machines share.
    """
    number = _script_word(argv)
    if number is None or os.path.isabs(argv[number]) or not os.path.isfile(argv[number]):
        return None
    word = argv[number]
    if number == 0 and "/" not in word and shutil.which(word):
        return None
    place = os.path.normpath(word)
    to = os.path.basename(place) if place.startswith("..") else place
    run = [f"./{to}"] if number else _runner(Path(word), to)
    return Script(Path(word), to, [*argv[:number], *run, *argv[number + 1 :]])


def _script_word(argv: Sequence[str]) -> int | None:
    if not argv or not INTERPRETERS.fullmatch(os.path.basename(argv[0])):
        return 0 if argv else None
    for number, word in enumerate(argv[1:], start=1):
        if word in NO_SCRIPT:
            return None
        if not word.startswith("-"):
            return number
    return None


def _runner(path: Path, to: str) -> list[str]:
    """How to run a file: itself, if it may be executed; otherwise by its first line, or by its name."""
    if os.access(path, os.X_OK):
        return [f"./{to}"]
    try:
        with path.open("rb") as file:
            first = file.read(SHEBANG_BYTES_MAX).partition(b"\n")[0]
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
    if first.startswith(b"#!"):
        return [*first[2:].decode(errors="replace").split(maxsplit=1), f"./{to}"]
    if path.suffix in BY_SUFFIX:
        return [*BY_SUFFIX[path.suffix], f"./{to}"]
    hint = f"chmod +x {path}, or name the program that runs it"
    raise click.UsageError(f"{path} is not executable, and has no #! line: {hint}")
