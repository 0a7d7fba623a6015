"""The stores that servers share, each on real servers of its own."""

from collections.abc import Iterator

import pytest
from roost_lab.components import postgres

from tests.components import etcd


@pytest.fixture
def database() -> Iterator[postgres.Postgres]:
    with postgres.running() as running:
        yield running


@pytest.fixture
def members() -> Iterator[etcd.Cluster]:
    with etcd.Cluster() as cluster:
        yield cluster


@pytest.fixture(params=["postgresql", "etcd"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store."""
    if request.param == "postgresql":
        found: postgres.Postgres = request.getfixturevalue("database")
        return found.dsn
    cluster: etcd.Cluster = request.getfixturevalue("members")
    return f"etcd://{','.join(cluster.endpoints)}/roost"
