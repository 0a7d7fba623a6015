"""Command hooks: runs a command of the server's settings for each event, in a session that ends with it."""

import asyncio
import os
import selectors
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from roost.model.records.webhook import Command, WebhookEvent
from roost.server.observability import logging
from roost.server.webhooks.http import PostOutcome

AT_ONCE_MAX = 4  # of all commands together: they take the server's own processors
RUN_S_MAX = 30.0  # a command that needs longer starts a process of its own
OUTPUT_BYTES_MAX = 2_048  # the last of it, for the log
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "HOME")  # nothing else: the server's own variables hold tokens
PATH = "/usr/local/bin:/usr/bin:/bin"

log = logging.logger("hooks")


class Commands:
    def __init__(self, run_s_max: float = RUN_S_MAX) -> None:
        self._run_s_max = run_s_max
        self._threads = ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="hook-command")
        self._running: set[int] = set()  # process groups
        self._lock = threading.Lock()
        self._closed = False

    async def run(self, command: Command, event: WebhookEvent) -> PostOutcome:
        """One try. Never raises; exit code 0 is success."""
        body = msgspec.json.encode(event) + b"\n"
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._run, command, event, body)
        except RuntimeError:  # the threads are gone: the server is stopping
            return PostOutcome(False, 0, "the server is stopping")

    def close(self) -> None:
        """Kill all running commands; the next leader repeats them."""
        with self._lock:
            self._closed = True
            for group in self._running:
                _kill(group)
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, command: Command, event: WebhookEvent, body: bytes) -> PostOutcome:
        environment = {"PATH": PATH, **{name: os.environ[name] for name in PASSED_ON if name in os.environ}}
        environment |= {"ROOST_HOOK": command.name, "ROOST_EVENT": event.event, "ROOST_DELIVERY": event.id}
        with self._lock:
            if self._closed:
                return PostOutcome(False, 0, "the server is stopping")
            try:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", command.command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, env=environment, cwd="/", start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                return PostOutcome(False, 0, f"it cannot be started: {error.strerror or error}")
            self._running.add(process.pid)
        try:
            output, is_over = _listen(process, body, time.monotonic() + self._run_s_max)
        finally:
            # Kill its children before it is reaped: afterwards the number may be another process's.
            with self._lock:
                _kill(process.pid)
                self._running.discard(process.pid)
            code = process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if output:
            log.info("a command hook says", hook=command.name, output=output.decode(errors="replace"))
        if not is_over:
            return PostOutcome(False, 0, f"it has not ended within {self._run_s_max:g} s and was killed")
        return PostOutcome(code == 0, code, "" if code == 0 else f"it has ended with {code}")


def _listen(process: "subprocess.Popen[bytes]", body: bytes, until: float) -> tuple[bytes, bool]:
    """The last output of a process until it ends or the time is up; and whether it has ended."""
    assert process.stdin is not None and process.stdout is not None
    ended = os.pidfd_open(process.pid)
    output = b""
    try:
        with suppress(OSError):  # the command may not read it
            process.stdin.write(body)  # smaller than the buffer of a pipe, so it never blocks
            process.stdin.close()
        os.set_blocking(process.stdout.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            selector.register(process.stdout, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                found = [key.fd for key, _ in selector.select(left)]
                if process.stdout.fileno() in found:
                    piece = os.read(process.stdout.fileno(), 64 << 10)
                    output = (output + piece)[-OUTPUT_BYTES_MAX:]
                    if not piece:
                        selector.unregister(process.stdout)
                if ended in found:  # children may keep its output open
                    return output, True
        return output, False
    finally:
        os.close(ended)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
