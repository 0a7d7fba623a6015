"""The guest of virtual machines, for tests: where QEMU cannot be installed, they are skipped."""

import os

import pytest
from roost_lab.components import Missing, guest

MEMORY = guest.MEMORY


def shared_guest() -> guest.Guest:
    try:
        return guest.guest()
    except Missing as missing:
        if os.geteuid() == 0:
            pytest.fail(str(missing))
        pytest.skip(str(missing))
