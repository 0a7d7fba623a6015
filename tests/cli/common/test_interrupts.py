"""Signals that are polled: counted, waking the thread that waits, and ending the process when no code polls."""

import os
import select
import signal

import pytest

from roost.cli.common.interrupts import Interrupts


def test_a_signal_is_counted_and_wakes_the_waiting_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert select.select([interrupts.fd], [], [], 0)[0] == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert select.select([interrupts.fd], [], [], 10)[0] == [interrupts.fd]
        assert (interrupts.count, interrupts.last) == (1, signal.SIGTERM)
        interrupts.clear()
        assert select.select([interrupts.fd], [], [], 0)[0] == []
    assert signal.getsignal(signal.SIGINT) is before


def test_one_interrupt_beyond_the_limit_ends_the_process() -> None:
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.count == 1
        os.kill(os.getpid(), signal.SIGINT)
