"""What tests of the server share: one event loop, because gRPC's own thread outlives a test and speaks to its loop."""

from collections.abc import AsyncIterator, Iterator

import pytest
import structlog


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """As long as an async fixture lives, all async tests run on its loop."""
    yield


@pytest.fixture(autouse=True)
def own_words() -> Iterator[None]:
    """A server that was started in a test has chosen where lines go: not for the tests after it."""
    yield
    structlog.reset_defaults()
