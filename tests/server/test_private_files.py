"""Private files: only their owner reads them, also with a generous umask and when they existed."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.server.history.database import open_for_writing
from roost.server.private_files import replacing


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_that_is_replaced_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    assert mode_of(path) == 0o666
    with replacing(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_history_in_a_directory_that_existed_is_private_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    open_for_writing(path).close()
    for name in ("history.db", "history.db-wal", "history.db-shm"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    database = open_for_writing(path)
    database.execute("CREATE TABLE written (id INTEGER)")
    assert {file.name: mode_of(file) for file in tmp_path.iterdir()} == {
        name: 0o600 for name in ("history.db", "history.db-wal", "history.db-shm")
    }
    database.close()
