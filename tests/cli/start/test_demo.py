"""roost demo: runs to the end, and leaves nothing, also when it is interrupted."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.serving import ROOST, wait_until

pytestmark = pytest.mark.serial

DEMO_S_MAX = 120.0  # below 20 s on a quiet machine


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path)}


def processes_of(directory: Path) -> list[str]:
    """Command lines in which a directory is named."""
    found = []
    for name in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode() if name.isdigit() else ""
        except OSError:
            continue
        if str(directory) in line:
            found.append(line)
    return found


def test_the_tour_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([*ROOST, "demo"], env=environment(tmp_path), capture_output=True, timeout=DEMO_S_MAX)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    text = done.stdout.decode()
    for message in (
        "hello",
        "step 2 sees what step 1 wrote",
        "12 succeeded",
        "kill -9",
        "lost",
        "can never run on this fleet",
    ):
        assert message in text
    assert os.listdir(tmp_path) == []
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGINT, signal.SIGTERM)])
def test_interrupted_it_cleans_up_too(tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    demo = subprocess.Popen(
        [*ROOST, "demo"], env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    wait_until(lambda: len(processes_of(tmp_path)) >= 7)  # the server, three keepers, three agents
    for number in numbers:
        demo.send_signal(number)
    demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert os.listdir(tmp_path) == []
    assert processes_of(tmp_path) == []
