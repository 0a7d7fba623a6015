"""Which files of a directory stay behind: .gitignore and .roostignore of every folder, with the rules of git."""

import os

from pathspec import GitIgnoreSpec

from roost.files.below import FILE
from roost.model.errors import Invalid, TooMuch

# In one folder, the lines of the later file come after those of the earlier one: `!name` takes a file in again.
NAMES = (".gitignore", ".roostignore")
BYTES_MAX = 1 << 20
GIT = ".git"  # stays behind as in git itself, unless a line takes it in


class Ignored:
    """The rules for one folder: its own and those of the folders above."""

    def __init__(self, path: str = "", above: "Ignored | None" = None, lines: list[str] | None = None) -> None:
        self._start = len(path) + 1 if path else 0
        self._above = above
        self._spec = GitIgnoreSpec.from_lines(lines) if lines else None

    def below(self, path: str, folder: int) -> "Ignored":
        """The rules for a folder, given its open descriptor."""
        lines = _lines(path, folder)
        try:
            return Ignored(path, self, lines) if lines else self
        except ValueError as error:
            raise Invalid(path or ".", f"{' or '.join(NAMES)}: {error}") from None

    def matches(self, path: str, is_folder: bool) -> bool:
        rules: Ignored | None = self
        while rules is not None:
            if rules._spec is not None:
                found = rules._spec.check_file(path[rules._start :] + ("/" if is_folder else "")).include
                if found is not None:
                    return found
            rules = rules._above
        return path.rpartition("/")[2] == GIT


def _lines(path: str, folder: int) -> list[str]:
    lines: list[str] = []
    for name in NAMES:
        try:
            descriptor = os.open(name, FILE, dir_fd=folder)
        except OSError:  # none, or a link
            continue
        with open(descriptor, "rb") as file:
            data = file.read(BYTES_MAX + 1)
        place = f"{path}/{name}" if path else name
        if len(data) > BYTES_MAX:
            raise TooMuch(f"a list of ignored files has at most {BYTES_MAX} bytes", path=place)
        lines += data.decode(errors="replace").splitlines()
    return lines
