"""The memory blobs keep the contract."""

import pytest

from roost.blobs.memory import MemoryBlobs
from roost.ports.blobs import Blobs
from tests.blobs.contract import BlobsContract


class TestMemory(BlobsContract):
    @pytest.fixture
    def blobs(self) -> Blobs:
        return MemoryBlobs()
