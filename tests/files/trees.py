"""Random directories for the tests of files: made on the disk, and read back as plain values."""

import os
import stat
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

# Names that have to survive as they are: unusual, but legal.
NAMES = st.one_of(
    st.sampled_from(["a", "b", "c", "A", "-x", "...", " ", "a b", "ä", "☃", "\\", "a:b", ".hidden", "*"]),
    st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=20).filter(
        lambda name: (
            name not in (".", "..") and len(name.encode()) <= 255 and name not in (".gitignore", ".roostignore", ".git")
        )
    ),
)
FILES = st.tuples(st.binary(max_size=200), st.integers(0, 0o777).map(lambda mode: mode | 0o400))
LINKS = st.sampled_from(["a", "b", "./a", "a/b", "nothing", "a/../b", "c"])

# A tree: a name leads to a file (bytes, mode), a link (text) or a folder (mode, tree).
TREES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(NAMES, st.one_of(FILES, LINKS), max_size=4),
    lambda trees: st.dictionaries(
        NAMES,
        st.one_of(FILES, LINKS, st.tuples(st.integers(0, 0o777).map(lambda mode: mode | 0o700), trees)),
        max_size=5,
    ),
    max_leaves=8,
)


def make(folder: Path, tree: dict[str, Any]) -> None:
    folder.mkdir()
    for name, content in tree.items():
        path = folder / name
        if isinstance(content, str):
            path.symlink_to(content)
        elif isinstance(content[0], bytes):
            path.write_bytes(content[0])
            path.chmod(content[1])
        else:
            make(path, content[1])
            path.chmod(content[0])


def read(folder: Path) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name in os.listdir(folder):
        path = folder / name
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            tree[name] = os.readlink(path)
        elif stat.S_ISDIR(mode):
            tree[name] = (mode & 0o7777, read(path))
        else:
            tree[name] = (path.read_bytes(), mode & 0o7777)
    return tree
