"""The container engines that tests share: one of each kind for a process, with an image of busybox."""

import atexit
import functools
import os

import pytest
from roost_lab.components import Missing
from roost_lab.components.docker import EngineServer

KINDS = ("docker", "podman")


@functools.cache
def shared_engine(kind: str = "docker") -> EngineServer:
    """For all tests of this process that do not break it; each names its containers after a node of its own."""
    engine = own_engine(kind)
    atexit.register(engine.stop)
    engine.start().import_image()
    return engine


def own_engine(kind: str = "docker", *, flags: tuple[str, ...] = ()) -> EngineServer:
    """Not started yet. Where engines cannot be installed, the test is skipped."""
    try:
        return EngineServer(kind, flags=flags)
    except Missing as missing:
        if os.geteuid() == 0:
            pytest.fail(str(missing))
        pytest.skip(str(missing))
