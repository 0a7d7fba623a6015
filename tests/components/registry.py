"""The registry that tests share: one for a process."""

import atexit
import functools
import os

import pytest
from roost_lab.components import Missing
from roost_lab.components.registry import Registry


@functools.cache
def shared_registry() -> Registry:
    """Where it cannot be installed, the test is skipped."""
    try:
        made = Registry()
    except Missing as missing:
        if os.geteuid() == 0:
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    atexit.register(made.stop)
    return made.start()
