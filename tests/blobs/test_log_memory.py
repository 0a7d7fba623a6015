"""The memory blobs keep the contract."""

import pytest

from roost.blobs.log_memory import MemoryLogs
from roost.ports.logs import Logs
from tests.blobs.log_contract import LogsContract


class TestMemory(LogsContract):
    @pytest.fixture
    def blobs(self) -> Logs:
        return MemoryLogs()
