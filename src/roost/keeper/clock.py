"""The keeper's clock."""

import time

NEVER = 1 << 62  # later than anything


def now_ms() -> int:
    """CLOCK_MONOTONIC in whole milliseconds, which the agent's own clock is as well."""
    return time.monotonic_ns() // 1_000_000
