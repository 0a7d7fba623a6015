"""The nemesis: which faults this machine can do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from roost_lab.chaos import nemesis
from roost_lab.chaos.nemesis import Nemesis
from roost_lab.chaos.plan import Fault


class Server:
    """A server that writes down how it is started."""

    name = "s0"

    def __init__(self) -> None:
        self.started: list[dict[str, str]] = []

    def end(self) -> None:
        """It ends at once."""

    def start(self, **environment: str) -> None:
        self.started.append(environment)


def test_the_clock_jumps_in_every_run_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "x86_64-linux-gnu" / "faketime" / "libfaketime.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(nemesis, "LIBRARIES", tmp_path)
    for _ in ("sqlite", "postgres"):
        server = Server()
        made = Nemesis(cast(Any, SimpleNamespace(servers=[server])), lambda _: None)
        made.run([Fault(0.0, "clock_jump", 0, 0.0)])
        assert [done.cannot for done in made.done] == [""]
        assert server.started[0]["LD_PRELOAD"] == str(library)
