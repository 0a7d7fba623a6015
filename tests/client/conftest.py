"""What the client's tests share: a server without nodes."""

from collections.abc import Iterator

import pytest

from roost.client import Client
from tests.cli.serving import Served, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server"), "server", "--store", "memory") as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with server.client() as client:
        yield client
