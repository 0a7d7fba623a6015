"""A server without nodes, and directories to send."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.client import Client
from tests.cli.serving import Served, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server"), "server", "--store", "memory") as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Links, odd names, an empty folder, the same content twice, modes, and a large file. No run has the same bytes."""
    root = tmp_path / "tree"
    (root / "a b" / "ü").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o750)
    (root / "a b" / "-rf *").write_bytes(os.urandom(100))
    (root / "a b" / "ü" / "same").write_text("one")
    (root / "same").write_text("one")
    (root / "nothing").touch(mode=0o600)
    (root / "tool").write_bytes(os.urandom(10_000))
    (root / "tool").chmod(0o755)
    (root / "link").symlink_to("a b/ü/same")
    (root / "large").write_bytes(os.urandom(9 << 20))
    return root


def shape(root: Path) -> dict[str, object]:
    """Everything that travels."""
    return {
        str(path.relative_to(root)): (
            os.readlink(path) if path.is_symlink() else
            (path.stat().st_mode & 0o777, path.read_bytes() if path.is_file() else None)
        )
        for path in sorted(root.rglob("*"))
    }  # fmt: skip
