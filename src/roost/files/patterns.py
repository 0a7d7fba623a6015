"""Patterns of paths, as documents and commands have them: `*` and `?` inside a name, `**` for any number of folders."""

import re
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from roost.files.manifest import Manifest

ONE = "[^/]"  # a character of a name
FOLDERS = "(?:[^/]+/)*"


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a relative path matches one of the patterns. A pattern that matches a folder takes what is in it."""
    alternatives = "|".join(f"(?:{_expression(pattern)})" for pattern in patterns)
    expression = re.compile(f"(?:{alternatives})(?:/.*)?", re.DOTALL)
    return lambda path: expression.fullmatch(path) is not None


def chosen(manifest: Manifest, patterns: Iterable[str]) -> Manifest:
    """The entries that match, and the folders that they are in."""
    matches = matcher(patterns)
    needed: set[str] = set()
    for entry in manifest.entries:
        if matches(entry.path):
            needed.add(entry.path)
            folder = entry.path.rpartition("/")[0]
            while folder and folder not in needed:
                needed.add(folder)
                folder = folder.rpartition("/")[0]
    return replace(manifest, entries=tuple(entry for entry in manifest.entries if entry.path in needed))


def _expression(pattern: str) -> str:
    """The runs of names between the `**`, each found at the first place where it fits.

    What is found once is not looked for again ((?>...)), so that no pattern takes exponential time.
    """
    runs: list[list[str]] = [[]]
    for name in pattern.split("/"):
        if name == "**":
            runs.append([])
        elif name not in ("", "."):
            runs[-1].append(_name(name))
    first, *others = ["/".join(run) for run in runs]
    if not others:
        return first
    *middle, last = others
    made = first + "/" if first else ""
    made += "".join(f"(?>{FOLDERS}?{run}/)" for run in middle if run)
    return made + (FOLDERS + last if last else ".+")


def _name(text: str) -> str:
    """One name: texts between the `*`, in the same way."""
    first, *others = ["".join(ONE if mark == "?" else re.escape(mark) for mark in part) for part in text.split("*")]
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>{ONE}*?{part})" for part in middle if part) + f"{ONE}*{last}"
