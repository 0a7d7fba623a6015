"""The objects in memory keep the contract."""

import pytest

from roost.blobs.object_memory import MemoryObjects
from roost.ports.objects import Objects
from tests.blobs.object_contract import ObjectsContract


class TestMemoryObjects(ObjectsContract):
    @pytest.fixture
    def objects(self) -> Objects:
        return MemoryObjects()
