"""Memory of servers and agents: glibc keeps what large messages took for the next ones, up to a limit."""

import ctypes

LARGE_BYTES = 16 << 20  # twice the largest body: larger pieces go back to the system at once
KEPT_BYTES = 16 << 20  # at the end of an arena; a batch of logs takes five times its 1 MiB on its way

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Otherwise the pages of each message go back to the system, which clears them anew for the next one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
