"""What all tests share: the kind of event loop, how hypothesis searches, and which tests come last."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Until all tests are collected (below): everything that is made until then stays.
gc.disable()

# As in roost.server, which tests import after gRPC: a server of this process forks to answer questions.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

_kill = os.kill


def kill_one(pid: int, number: int) -> None:
    """A test that looks for a process and finds none has 0, which stands for all processes of its group: the run."""
    assert pid > 0, f"this would signal the group of the tests: {pid}"
    _kill(pid, number)


os.kill = kill_one

# Runs of most tests share files with them. tests/keeper and tests/cli/start/test_isolation.py have sandboxes.
os.environ["ROOST_AGENT_ISOLATION"] = "none"
# Nodes of most tests run no virtual machines. tests/e2e/test_vms.py has those that do.
os.environ["ROOST_AGENT_QEMU"] = "none"

# `ci` finds the same thing every time; HYPOTHESIS_PROFILE=explore looks for something new.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Roost runs on asyncio and nothing else."""
    return "asyncio"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Few files have serial tests; to import all others takes each worker of that stage twenty seconds."""
    if config.getoption("markexpr") != "serial" or collection_path.suffix != ".py":
        return None
    return "mark.serial" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Examples come last: when the parts are broken, their own tests should say so first."""
    for item in items:
        if item.path.name in ("test_examples.py", "test_stranger.py"):
            item.add_marker("examples")
    items.sort(key=lambda item: item.get_closest_marker("examples") is not None)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: no garbage collection has to look at half a million objects again."""
    gc.freeze()
    gc.enable()
