"""The private etcd cluster, for tests: where etcd cannot be installed, they are skipped."""

import atexit
import functools
import os
from typing import Any

import pytest
from roost_lab.components import Missing, etcd
from roost_lab.components.etcd import dies_with_us, memory_folder

__all__ = ["Cluster", "dies_with_us", "memory_folder", "shared_cluster"]


class Cluster(etcd.Cluster):
    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except Missing as missing:
            if os.geteuid() == 0:
                pytest.fail(str(missing))
            pytest.skip(str(missing))


@functools.cache
def shared_cluster() -> Cluster:
    """One for all tests of this process that do not break it; each takes a prefix of its own."""
    cluster = Cluster().start()
    atexit.register(cluster.stop)
    return cluster
