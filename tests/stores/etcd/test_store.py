"""The etcd store keeps the contract on a real cluster of three members."""

import itertools
import os

import pytest

from roost.stores.etcd.store import EtcdStore
from roost.stores.etcd.url import EtcdPlace
from tests.components.etcd import shared_cluster
from tests.stores.contract import Opener
from tests.stores.shared import SharedStoreContract

PREFIXES = itertools.count()


def new_prefix() -> str:
    return f"/test-{os.getpid()}-{next(PREFIXES)}"


class TestEtcd(SharedStoreContract):
    @pytest.fixture
    def opener(self) -> Opener:
        cluster, prefix = shared_cluster(), new_prefix()
        return lambda place="here": EtcdStore(EtcdPlace(cluster.endpoints, f"{prefix}/{place}"))
