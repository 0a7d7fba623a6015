"""The line that shows a transfer."""

import pytest

from roost.cli.common.transfer_bar import TransferBar, line

MIB = 1 << 20


def test_line_has_rate_and_time_left() -> None:
    shown = line("sending", 512 * MIB, 1024 * MIB, 256 * MIB, 2.0)
    assert shown == "sending  ██████████░░░░░░░░░░  50%  512MiB of 1GiB  128MiB/s  4s left"


def test_line_fits_80_columns_and_ends_without_a_rest() -> None:
    huge = line("fetching", 1234567890123, 9876543210987, 123456789, 3.3)
    assert len(huge) <= 80, huge
    assert line("sending", 10, 10, 10, 1.0) == "sending  ████████████████████ 100%  10B of 10B  10B/s"
    assert line("reading", 3 * MIB, 0, 3 * MIB, 1.0) == "reading  3MiB  3MiB/s"
    assert line("sending", 0, 5, 0, 0.0) == "sending  ░░░░░░░░░░░░░░░░░░░░   0%  0B of 5B"


def test_nothing_on_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    with TransferBar("sending") as bar:
        bar.read(5, 0)
        bar.moved(5, 10)
    assert capfd.readouterr() == ("", "")
