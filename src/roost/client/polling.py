"""Waiting for sockets and other descriptors."""

import select
from collections.abc import Iterable


def readable(fds: Iterable[int], timeout_s: float) -> list[int]:
    """Descriptors that can be read without waiting, or are broken. `select` refuses those above 1,023."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_s * 1_000)]
