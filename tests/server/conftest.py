"""What tests of the server share: one event loop, and a logging configuration that is reset after each test."""

from collections.abc import AsyncIterator, Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """A server started in a test configures logging for the process; undo that."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """One event loop for all async tests: the thread of gRPC outlives a test and keeps a reference to its loop."""
    yield
