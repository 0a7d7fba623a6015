"""One look at the health of a run: a connection, a request or a command. Ends in time, whatever the other side does."""

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Awaitable
from contextlib import suppress
from urllib.parse import quote

import msgspec

from roost.keeper import processes
from roost.keeper.isolation import TOOL
from roost.keeper.run import signal_group
from roost.model.spec.service import Check
from roost.ports.driver import Isolation

HOST = "127.0.0.1"  # a run is on this machine, and what it says to others is not asked for
LINE_BYTES_MAX = 8 << 10  # of an answer's first line, and of each line of those that say: wait, there is more
LINES_MAX = 100
INFORMATION_MAX = 199  # an answer below is followed by another
WELL_MIN, WELL_MAX = 200, 399
OUTPUT_BYTES_KEPT = 200  # the end of what a command prints is where it says what is wrong
READ_BYTES = 64 << 10
READ_PAUSE_S = 0.005  # after a full read: 13 MB/s, so that a command that only prints costs us next to nothing
KILLED_S_MAX = 0.5  # KILL works within milliseconds; longer means a process stuck in the kernel, and we go on
EXIT_LOOK_S = 0.02  # between two looks whether a command has ended, where the kernel does not tell
CHECK_MARK = "ROOST_CHECK"  # in the environment of a command: another agent can tell what we have left behind


class ProbeTarget(msgspec.Struct, frozen=True):
    check: Check
    port: int = 0  # 0: it was given no such port
    directory: str = ""  # of the run
    env: dict[str, str] = {}  # of a command: that of the run, without its secrets
    isolation: Isolation | None = None  # of the run, and so of a command
    slot: int = 0  # the process 1 of an isolated run


async def probe(target: ProbeTarget) -> str:
    """A message that says what is wrong; empty: it is healthy. The server knows which check it was."""
    check = target.check
    if check.argv:
        return await _command(target)
    if not target.port:
        return "the run was given no such port"
    return await _in_time(_request(target.port, check.path) if check.path else _connect(target.port), check)


async def _in_time(inspect: Awaitable[str], check: Check) -> str:
    try:
        async with asyncio.timeout(check.timeout_ms / 1_000):
            return await inspect
    except TimeoutError:
        return f"no answer within {_time(check.timeout_ms)}"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)


async def _connect(port: int) -> str:
    _, writer = await asyncio.open_connection(HOST, port)
    try:
        return _self_made(writer)
    finally:
        writer.transport.abort()


async def _request(port: int, path: str) -> str:
    """A plain GET. Only the status counts: a redirection is healthy and is not followed."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=LINE_BYTES_MAX)
    try:
        if message := _self_made(writer):
            return message
        target = quote(path, safe="/?&=%:@!$'()*+,;~[]")
        lines = (f"GET {target} HTTP/1.1", f"Host: {HOST}:{port}", "User-Agent: roost", "Accept: */*")
        writer.write("\r\n".join((*lines, "Connection: close", "", "")).encode())
        status = await _status(reader)
    finally:
        writer.transport.abort()
    return "" if isinstance(status, int) and WELL_MIN <= status <= WELL_MAX else str(status)


async def _status(reader: asyncio.StreamReader) -> int | str:
    for number in range(LINES_MAX):
        try:
            line = await reader.readline()
        except ValueError:
            return "the answer is not HTTP: its line does not end"
        if not line:
            return "the answer ends before it says anything" if not number else "the answer is not complete"
        version, _, rest = line.partition(b" ")
        code = rest[:3]
        if version.startswith(b"HTTP/") and code.isdigit() and len(code) == 3:
            if int(code) > INFORMATION_MAX:
                return int(code)
        elif not number:
            return "the answer is not HTTP"
    return "the answer does not come to its point"


def _self_made(writer: asyncio.StreamWriter) -> str:
    """Where no process listens, the kernel may give us that very port and connect us to ourselves."""
    own = writer.get_extra_info("sockname") == writer.get_extra_info("peername")
    return "no process listens there" if own else ""


async def _command(target: ProbeTarget) -> str:
    """A process group of its own, which is gone when this returns. Popen starts it by vfork, however large we are."""
    check = target.check
    try:
        process = subprocess.Popen(
            inside(target), cwd=target.directory, env=target.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, bufsize=0, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        message = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
        return f"{getattr(error, 'filename', None) or check.argv[0]}: {message}"
    assert process.stdout is not None
    output = _Output(process.stdout.fileno())
    late = False
    try:
        async with asyncio.timeout(check.timeout_ms / 1_000):
            await _exit(process)
    except TimeoutError:
        late = True
    finally:
        signal_group(process.pid, signal.SIGKILL)  # it was not waited for yet: the number is still its own
        with suppress(TimeoutError):
            async with asyncio.timeout(KILLED_S_MAX):
                await _exit(process)
        process.poll()
        text = output.close()
        process.stdout.close()
    code = process.returncode
    message = f"exit code {code}" if code > 0 else f"ended by signal {-code}" if code < 0 else ""
    if late:
        message = f"no end within {_time(check.timeout_ms)}"
    return f"{message}{f': {text}' if text else ''}" if message else ""


def inside(target: ProbeTarget) -> list[str]:
    """The command of a check as the user of its run, and in the namespaces of its processes. Raises OSError."""
    isolation, argv = target.isolation, target.check.argv
    if isolation is None:
        return list(argv)
    become: list[str] = []
    if os.geteuid() == 0:
        become = ["--reuid", str(isolation.user), "--regid", str(isolation.group), "--clear-groups"]
        become.append("--bounding-set=-all")
    become = [TOOL, *become, "--no-new-privs", "--"]
    if isolation.level != "sandbox":
        return [*become, *argv]
    members = (processes.read(f"/proc/{target.slot}/task/{target.slot}/children") or b"").split()
    if not members:
        raise ProcessLookupError(errno.ESRCH, "no process of the run", "its slot")
    enter = ["nsenter", "--target", members[0].decode(), "--mount", "--pid", "--ipc", "--uts"]
    enter += [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    change = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', target.directory]
    return [*enter, "--", *become, *change, *argv]


async def _exit(process: "subprocess.Popen[bytes]") -> None:
    """Wait until it has ended, without taking that in: until then its number is not given to another."""
    loop = asyncio.get_running_loop()
    try:
        watched = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            await asyncio.sleep(EXIT_LOOK_S)
        return
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(watched, lambda: None if ended.done() else ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(watched)
        os.close(watched)


class _Output:
    """The end of what a command prints; the rest is read and thrown away, at its leisure."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._tail = b""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        self._listen()

    def close(self) -> str:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._fd)
        self._take()
        return " ".join(self._tail.decode(errors="replace").split())

    def _listen(self) -> None:
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        size = self._take()
        if size in (0, READ_BYTES):
            self._loop.remove_reader(self._fd)
        if size == READ_BYTES:
            self._timer = self._loop.call_later(READ_PAUSE_S, self._listen)

    def _take(self) -> int:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return -1
        self._tail = (self._tail + data)[-OUTPUT_BYTES_KEPT:]
        return len(data)


def end_leftovers(mark: str) -> int:
    """KILL the commands that an agent before us has left behind when it died; returns how many processes they had."""
    found = 0
    for pid in processes.started_by(mark) if mark else ():
        if processes.find(processes.environment(pid), CHECK_MARK) is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                found += 1
    return found


def _time(ms: int) -> str:
    return f"{ms // 1_000} s" if ms % 1_000 == 0 else f"{ms} ms"
