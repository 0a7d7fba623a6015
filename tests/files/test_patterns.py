"""Patterns of paths, against plain examples, and against a recursive definition of the same."""

import re

from hypothesis import given
from hypothesis import strategies as st

from roost.files.patterns import Pattern


def test_examples() -> None:
    assert Pattern("dist/*.whl").matches("dist/a.whl")
    assert not Pattern("dist/*.whl").matches("dist/sub/a.whl")
    assert Pattern("dist").matches("dist/sub/a.whl"), "a folder that matches is whole"
    assert Pattern("dist/").matches("dist/a.whl") and Pattern("./dist").matches("dist")
    assert Pattern("**/*.log").matches("a.log") and Pattern("**/*.log").matches("a/b/c.log")
    assert Pattern("a/**/b").matches("a/b") and Pattern("a/**/b").matches("a/x/y/b")
    assert not Pattern("a/**/b").matches("x/a/b")
    assert Pattern("**").matches("any/thing")
    assert Pattern("a[1]?").matches("a[1]x") and not Pattern("a[1]?").matches("a1x"), "brackets are plain"


def test_a_walk_enters_only_folders_that_can_hold_a_match() -> None:
    pattern = Pattern("src/**/test.py")
    assert not pattern.below(pattern.start, "docs")
    assert pattern.below(pattern.below(pattern.start, "src"), "deep")


def test_no_pattern_takes_long() -> None:
    Pattern("/".join(["**", "*a*a*a*a*a*"] * 30)).matches("/".join(["a" * 200 + "b"] * 100))


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "ba"]), min_size=1, max_size=5)
PARTS = st.lists(st.sampled_from(["a", "b", "*", "?", "a*", "*b", "**"]), min_size=1, max_size=5)


def is_like(parts: list[str], names: list[str]) -> bool:
    if not parts:
        return True  # the rest is below a match
    if parts[0] == "**":
        return any(is_like(parts[1:], names[count:]) for count in range(len(names) + 1))
    regex = "".join({"*": ".*", "?": "."}.get(character, character) for character in parts[0])
    return bool(names) and re.fullmatch(regex, names[0]) is not None and is_like(parts[1:], names[1:])


@given(PARTS, NAMES)
def test_as_defined(parts: list[str], names: list[str]) -> None:
    assert Pattern("/".join(parts)).matches("/".join(names)) == is_like(parts, names)
