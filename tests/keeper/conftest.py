"""A keeper and an agent's connection to it, for every test of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keeper.keeper_harness import Client, KeeperHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[KeeperHarness]:
    harness = KeeperHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def client(harness: KeeperHarness) -> Client:
    harness.keeper()
    return harness.client()
