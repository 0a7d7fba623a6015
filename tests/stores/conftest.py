"""What the SQLite tests share: a directory, a store in it, and a disk that does as the test wants."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

# A failing assertion of the contract shows its values, though the contract is not a test file itself.
pytest.register_assert_rewrite("tests.stores.contract", "tests.stores.shared")

from roost.stores.sqlite.store import SqliteStore  # noqa: E402
from tests.stores.disk import Disk, registered  # noqa: E402


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def store(data: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(data)
    yield store
    await store.close()


@pytest.fixture
def disk() -> Iterator[Disk]:
    with registered() as disk:
        yield disk
