"""A keeper whose runs are virtual machines: real QEMU, and the guest that all tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keeper.machines.machine_bench import MachineBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[MachineBench]:
    bench = MachineBench(tmp_path)
    yield bench
    bench.close()
