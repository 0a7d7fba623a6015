"""Where a path below a directory leads: links that stay inside are followed, and nothing ever leads out."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.files.below import Below
from roost.files.inside import resolve
from roost.model.errors import Invalid


def resolved(root: Path, path: str) -> str:
    with Below(root) as below:
        return resolve(below, path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "7" / "out").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "latest").symlink_to("runs/7")
    (tmp_path / "runs" / "up").symlink_to("../latest/./out")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", ""), (".", ""), ("./runs//7/", "runs/7"), ("latest", "runs/7"), ("latest/new/file", "runs/7/new/file"),
        ("runs/up/x", "runs/7/out/x"), ("new", "new"),
    ],
)  # fmt: skip
def test_a_path_leads_to_its_place(tree: Path, path: str, place: str) -> None:
    assert resolved(tree, path) == place


@pytest.mark.parametrize("target", ["/etc", "..", "runs/../../x", "latest/../../../x", "/proc/self/cwd"])
def test_a_link_that_leaves_is_refused_with_the_path(tree: Path, target: str) -> None:
    (tree / "bad").symlink_to(target)
    for path in ("bad", "bad/x", "latest/../../bad"):
        with pytest.raises(Invalid, match="leads out of the work directory") as refused:
            resolved(tree, path)
        assert refused.value.path == path


def test_a_file_is_no_folder_and_a_circle_ends(tree: Path) -> None:
    with pytest.raises(Invalid, match="file is not a folder"):
        resolved(tree, "file/x")
    (tree / "a").symlink_to("b")
    (tree / "b").symlink_to("a")
    with pytest.raises(Invalid, match="more than 40 links"):
        resolved(tree, "a/x")


NAMES = st.sampled_from(["a", "b", "c", "..", "."])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@given(links=st.dictionaries(st.sampled_from(["a", "b", "c", "a/a", "b/a"]), PATHS, max_size=4), path=PATHS)
def test_it_leads_where_the_system_leads_and_never_out(
    links: dict[str, str], path: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for place, target in sorted(links.items()):
        link = root / place
        if not os.path.lexists(link) and (link.parent == root or not link.parent.is_symlink()):
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(target)
    try:
        place = resolved(root, path)
    except Invalid:
        return
    assert not (root / place).is_symlink() and (root / place).resolve() == (root / path).resolve()
    assert (root / place).resolve().is_relative_to(root)
