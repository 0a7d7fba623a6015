"""The blobs in memory keep the contract."""

import pytest

from roost.blobs.memory import MemoryBlobs
from roost.ports.blobs import BlobStore
from tests.blobs.contract import BlobsContract


class TestMemory(BlobsContract):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return MemoryBlobs()
