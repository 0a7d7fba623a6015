"""The nemesis: a server with another time."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from roost_lab.chaos.nemesis import ALONE_JUMP_S, Nemesis
from roost_lab.chaos.plan import Fault


class Clock:
    """A server that only tells its time, in seconds, when it is started."""

    name = "s0"

    def __init__(self) -> None:
        self.times: list[float] = []

    def end(self) -> None:
        """It ends at once."""

    def start(self, **environment: str) -> None:
        command = [sys.executable, "-c", "import time; print(time.time())"]
        self.times.append(float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout))


def test_a_server_comes_back_with_another_time(tmp_path: Path) -> None:
    server = Clock()
    made = Nemesis(cast(Any, SimpleNamespace(servers=[server], folder=tmp_path)), lambda _: None)
    now = time.time()
    made.run([Fault(0.0, "clock_jump", target, 0.0) for target in (0, 1)])
    assert [done.cannot for done in made.done] == ["", ""]
    assert [round((shown - now) / ALONE_JUMP_S) for shown in server.times] == [-1, 1]
