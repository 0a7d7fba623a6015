"""Patterns of paths: `*` and `?` inside a name, `**` for any number of folders. A folder that matches is whole."""

import fnmatch
import re

Places = frozenset[int]  # where in a pattern a path has come so far; empty: nothing below it can match


class Pattern:
    """Read name by name, so that a walk enters only folders that can hold a match. No path takes long to match."""

    def __init__(self, text: str, *, is_literal: bool = False) -> None:
        names = [name for name in text.split("/") if name not in ("", ".")]  # `dist/` and `./dist` are `dist`
        self._names = [None if name == "**" and not is_literal else _name(name, is_literal) for name in names]
        self.start = self._with_skipped({0})

    def below(self, places: Places, name: str) -> Places:
        """The places of what has this name in a folder with those places."""
        found = set()
        for place in places:
            if place == len(self._names):
                found.add(place)
            elif (wanted := self._names[place]) is None:
                found.add(place)
            elif wanted.match(name):
                found.add(place + 1)
        return self._with_skipped(found)

    def is_match(self, places: Places) -> bool:
        return len(self._names) in places

    def matches(self, path: str) -> bool:
        places = self.start
        for name in path.split("/"):
            places = self.below(places, name)
        return self.is_match(places)

    def _with_skipped(self, places: set[int]) -> Places:
        """`**` may stand for no folder at all."""
        for place in sorted(places):
            while place < len(self._names) and self._names[place] is None:
                place += 1
                places.add(place)
        return frozenset(places)


def _name(text: str, is_literal: bool) -> re.Pattern[str]:
    return (
        re.compile(rf"{re.escape(text)}\Z") if is_literal else re.compile(fnmatch.translate(text.replace("[", "[[]")))
    )
