"""`roost blobs`: files get a name, are listed, fetched, and deleted."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Type


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data" / "labels").mkdir(parents=True)
    (tmp_path / "data" / "labels" / "a").write_text("one")
    (tmp_path / "data" / "b").write_bytes(os.urandom(3_000))
    (tmp_path / "c").write_text("three")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_directory_gets_a_name_and_comes_back(typed: Type, work: Path) -> None:
    done = typed("blobs", "put", "images", "data", "-p", "blobs-a")
    assert (done.exit_code, done.stderr) == (0, "roost: blob:images is 2 files (2.93KiB)\n"), done.output
    lines = typed("blobs", "list", "-p", "blobs-a").stdout.splitlines()
    assert lines[0].split() == ["NAME", "FILES", "SIZE", "CHANGED", "BY"]
    assert lines[1].split()[:3] == ["images", "2", "2.93KiB"] and len(lines) == 2
    done = typed("blobs", "get", "blob:images", "labels", "-p", "blobs-a", "--json")
    assert json.loads(done.stdout) == {"to": "images", "files": 1, "size": 3}
    assert (work / "images" / "labels" / "a").read_text() == "one"
    assert typed("blobs", "get", "images", "nothing", "--to", "x", "-p", "blobs-a").exit_code == 5
    assert not (work / "x").exists()


def test_files_keep_their_names_and_replace_what_had_the_name(typed: Type, work: Path) -> None:
    assert typed("blobs", "put", "mixed", "data", "-p", "blobs-b").exit_code == 0
    done = typed("blobs", "put", "mixed", "c", "data", "-p", "blobs-b", "--json")
    assert json.loads(done.stdout)["files"] == 3
    assert typed("blobs", "get", "mixed", "-p", "blobs-b").exit_code == 0
    assert sorted(os.listdir(work / "mixed")) == ["c", "data"]


def test_workload_has_named_files_as_input(typed: Type, work: Path) -> None:
    typed("blobs", "put", "input", "data")
    document = b'{name: uses-blob, command: "true", inputs: [{from: "blob:input", to: in}]}'
    assert typed("apply", "-f", "-", stdin=document).exit_code in (0, 4)
    done = typed(
        "apply", "-f", "-", stdin=document.replace(b"uses-blob", b"other").replace(b"blob:input", b"blob:none")
    )
    assert done.exit_code == 2 and "inputs[0].from" in done.stderr, done.stderr


def test_name_that_is_not_there(typed: Type, work: Path) -> None:
    assert typed("blobs", "put", "gone", "c").exit_code == 0
    done = typed("blobs", "delete", "gone")
    assert (done.exit_code, done.stderr) == (0, "roost: blob:gone is deleted\n")
    for arguments in (("delete", "gone"), ("get", "gone")):
        done = typed("blobs", *arguments)
        assert done.exit_code == 1 and "no files with the name gone" in done.stderr
    assert typed("blobs", "put", "no good name", "c").exit_code == 2
    assert typed("blobs", "put", "x", "nowhere").exit_code == 2
