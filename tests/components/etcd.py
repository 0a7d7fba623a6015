"""The private etcd cluster, for tests: where etcd cannot be installed, they are skipped."""

import atexit
import functools
import os
import shutil
import subprocess
from typing import Any

import pytest
from roost_lab.components import Missing, etcd
from roost_lab.components.etcd import dies_with_us, memory_folder, v3

__all__ = ["Cluster", "dies_with_us", "memory_folder", "shared_cluster"]


class Cluster(etcd.Cluster):
    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except Missing as missing:
            if os.geteuid() == 0:
                pytest.fail(str(missing))
            pytest.skip(str(missing))

    def ctl(self, *message: str) -> str:
        """etcdctl with the first member that is up."""
        return self._asked(next(iter(self._processes)), *message)

    def leader(self) -> int:
        """The number of the member that leads."""
        for number in self._processes:
            if ", true," in self._asked(number, "endpoint", "status"):
                return number
        raise AssertionError("no member leads")

    def forget(self, number: int) -> None:
        """What a dead member had is gone."""
        shutil.rmtree(self._folder / str(number))

    def _asked(self, number: int, *message: str) -> str:
        command = self._ctl(number, *message)
        return subprocess.run(command, capture_output=True, env=v3(), check=True, text=True).stdout


@functools.cache
def shared_cluster() -> Cluster:
    """One for all tests of this process that do not break it; each takes a prefix of its own."""
    cluster = Cluster().start()
    atexit.register(cluster.stop)
    return cluster
