"""Paths of this machine in documents become digests; all else stays as it is."""

from pathlib import Path
from typing import Any

import pytest

from roost.client.errors import CannotSend
from roost.client.files.inputs import with_absolute_paths, with_digests

DIGEST = "sha256:" + "1" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "model.bin").write_text("x")
    return tmp_path


class Sends:
    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], str]] = []

    def __call__(self, paths: dict[str, Path], project: str) -> str:
        self.calls.append(({to: str(path) for to, path in paths.items()}, project))
        return DIGEST


def replaced(folder: Path, *inputs: Any, **fields: Any) -> tuple[Any, list[tuple[dict[str, str], str]]]:
    sends = Sends()
    done = with_digests(with_absolute_paths({**fields, "inputs": list(inputs)}, folder), sends)
    return done["inputs"], sends.calls


def test_a_directory_keeps_its_place(folder: Path) -> None:
    inputs, calls = replaced(folder, {"from": "./data", "to": "in"}, {"from": "data"}, project="ml")
    assert inputs == [{"from": DIGEST, "to": "in"}, {"from": DIGEST, "to": ""}]
    assert calls == [({"": f"{folder}/data"}, "ml")] * 2


@pytest.mark.parametrize(
    ("to", "place", "name"),
    [(None, "", "model.bin"), ("w.bin", "", "w.bin"), ("a/b/w.bin", "a/b", "w.bin"), ("a/", "a/", "model.bin")],
)
def test_a_file_gets_a_name_or_a_folder(folder: Path, to: str | None, place: str, name: str) -> None:
    block = {"from": "model.bin"} | ({} if to is None else {"to": to})
    inputs, calls = replaced(folder, block)
    assert inputs == [{"from": DIGEST, "to": place}]
    assert calls == [({name: f"{folder}/model.bin"}, "default")]


def test_other_inputs_stay(folder: Path) -> None:
    others = [{"from": "blob:x"}, {"from": DIGEST}, {"workload": "build"}, {"url": "https://x/y"}, "wrong", {"from": 3}]
    assert replaced(folder, *others) == (others, [])
    for document in ({"name": "x"}, {"inputs": "wrong"}, ["x"], None, "text"):
        assert with_digests(with_absolute_paths(document, folder), Sends()) == document


def test_actions_of_a_pipeline_have_inputs(folder: Path) -> None:
    pipeline = {"project": "ci", "actions": [{"name": "a"}, {"name": "b", "inputs": [{"from": "data"}]}, "wrong"]}
    sends = Sends()
    done = with_digests(with_absolute_paths(pipeline, folder), sends)
    assert done["actions"][1]["inputs"] == [{"from": DIGEST, "to": ""}]
    assert sends.calls == [({"": f"{folder}/data"}, "ci")]
    assert [done["actions"][0], done["actions"][2]] == [{"name": "a"}, "wrong"]


def test_a_failure_names_the_field(folder: Path) -> None:
    def refuse(paths: dict[str, Path], project: str) -> str:
        raise CannotSend("/x", "no such file")

    document = {"actions": [{"inputs": [{"from": "blob:x"}, {"from": "/x"}]}]}
    with pytest.raises(CannotSend, match=r"^actions\[0\].inputs\[1\].from: /x: no such file$"):
        with_digests(document, refuse)
