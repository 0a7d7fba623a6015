"""Memory that is freed is used again, without the system clearing its pages each time."""

import subprocess
import sys

import pytest

PAGES_OF_MESSAGE = 256
# Six large messages at a time, as on the way of a batch of logs: so many pages were cleared for the last ones.
SCRIPT = """
import ctypes, resource
{}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for _ in range(50):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    messages = [libc.malloc(1 << 20) for _ in range(6)]
    for message in messages:
        libc.memset(ctypes.c_void_p(message), 1, 1 << 20)
    for message in messages:
        libc.free(ctypes.c_void_p(message))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
KEEP = "from roost.allocation import keep_freed_memory; keep_freed_memory()"


def pages_of_the_last(first: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(first)], capture_output=True, check=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_the_pages_of_large_messages_are_used_again() -> None:
    assert pages_of_the_last("") > PAGES_OF_MESSAGE
    assert pages_of_the_last(KEEP) < PAGES_OF_MESSAGE
