"""What tests over gRPC share: one event loop, because gRPC's own thread outlives a test and speaks to its loop."""

from collections.abc import AsyncIterator

import pytest


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """As long as an async fixture lives, all async tests run on its loop."""
    yield
