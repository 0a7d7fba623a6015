"""What tests of security share: one event loop."""

from collections.abc import AsyncIterator

import pytest


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """One event loop for all async tests: the thread of gRPC outlives a test and keeps a reference to its loop."""
    yield
