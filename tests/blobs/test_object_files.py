"""The objects in files keep the contract; a disk that refuses is an answer, and nothing half-written is found."""

from pathlib import Path

import pytest

from roost.blobs.object_files import FileObjects
from roost.ports.objects import Objects, ObjectsUnavailable
from tests.blobs.object_contract import KEY, ObjectsContract


class TestFileObjects(ObjectsContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> Objects:
        return FileObjects(tmp_path / "root")


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    first, second = FileObjects(tmp_path), FileObjects(tmp_path)
    first.put(KEY, b"one")
    assert second.get(KEY) == b"one" and second.list("logs") == [KEY]
    second.delete("logs")
    assert first.get(KEY) is None


def test_a_folder_in_place_of_a_root_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    objects = FileObjects(tmp_path / "root")
    assert isinstance(objects.put(KEY, b"x"), ObjectsUnavailable)
    assert isinstance(objects.get(KEY), ObjectsUnavailable)


def test_what_a_crash_left_half_written_is_no_object(tmp_path: Path) -> None:
    objects = FileObjects(tmp_path)
    objects.put(KEY, b"x")
    (tmp_path / "+new" / "half").write_bytes(b"half")
    assert objects.list("logs") == [KEY]
