"""Buckets of durations."""

import pytest

from roost.server.observability.histogram import Histogram


def test_values_fall_into_buckets() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1] and histogram.total == pytest.approx(7.65)
