"""Two keepers with slots: one of root, and one of another user. Without root, there is only our own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keeper.keeper_harness import Client, KeeperHarness

OTHER_USER = 61_234
SYSTEM_PYTHON = "/usr/bin/python3"  # that of a developer may be in a home directory, which others cannot read


class SlotHarness(KeeperHarness):
    """`order(..., project=...)`: the project of a run decides its user, and its slot."""

    def __init__(self, home: Path, *, as_root: bool) -> None:
        super().__init__(home)
        self.as_root = as_root
        self.isolation = {"level": "sandbox", "project": "web"} | (self.user_of("web") if as_root else {})

    def user_of(self, project: str) -> dict[str, int]:
        user = 700_000 + sum(map(ord, project))
        return {"user": user, "group": user}

    def of(self, project: str) -> dict[str, object]:
        """The isolation of another project's run."""
        own = self.user_of(project) if self.as_root else {}
        return {"isolation": {"level": "sandbox", "project": project, **own}}


@pytest.fixture(params=["root", "user"])
def harness(request: pytest.FixtureRequest) -> Iterator[SlotHarness]:
    as_root = request.param == "root"
    if as_root and os.geteuid() != 0:
        pytest.skip("needs root: slots with users of their own")
    home = Path(tempfile.mkdtemp(prefix="roost-slots-"))
    harness = SlotHarness(home, as_root=as_root)
    if not as_root and os.geteuid() == 0:
        harness.python = SYSTEM_PYTHON
        os.chown(home, OTHER_USER, OTHER_USER)
        ids = [f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
        harness.prefix = ("setpriv", *ids)
    yield harness
    harness.close()
    shutil.rmtree(home)


@pytest.fixture
def client(harness: SlotHarness) -> Client:
    (harness.dir.parent / "server").mkdir(mode=0o700)
    (harness.dir.parent / "server" / "admin.token").write_text("of the server")
    harness.keeper("--hide", str(harness.dir.parent / "server"))
    return harness.client()
