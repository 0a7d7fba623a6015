"""Commands inside real runs, through server, agent and keeper."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from roost_lab.bench.product import Product

from roost.client.errors import ApiError
from roost.client.tunnels import Tunnel
from roost.model.tunnels import FrameKind, TunnelEnd
from roost.schema.work import TunnelBody
from tests.e2e.test_agents import is_state

SLEEP = "sleep 600"


@pytest.fixture(scope="module", params=["none", "user", "sandbox"])
def product(request: pytest.FixtureRequest) -> Iterator[Product]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_AGENT_ISOLATION", request.param)
        with Product(agents=1, cpu="8", options=("--lease", "60000")) as product:
            yield product


def begin(product: Product, name: str, command: str = SLEEP, **fields: object) -> None:
    product.client.workloads.submit({"name": name, "command": command, "retries": 0} | fields)
    product.wait_until(is_state(product, name, "running"))


def everything(tunnel: Tunnel) -> tuple[bytes, bytes, TunnelEnd | None]:
    """What a command wrote, and how it ended."""
    found = {FrameKind.OUTPUT: b"", FrameKind.ERRORS: b""}
    with tunnel:
        while (piece := tunnel.read()) is not None:
            found[piece[0]] += piece[1]
        return found[FrameKind.OUTPUT], found[FrameKind.ERRORS], tunnel.end


def run(product: Product, name: str, *argv: str, given: bytes | None = None) -> tuple[bytes, bytes, TunnelEnd | None]:
    tunnel = product.client.tunnels.exec("default", name, argv)
    if given is not None:
        tunnel.write(given)
    tunnel.end_input()
    return everything(tunnel)


def test_a_command_runs_beside_its_run(product: Product) -> None:
    begin(product, "plain", "sh -c 'echo of the run > file; echo $$ > pid; exec sleep 600'", env={"COLOUR": "red"})
    script = "cat file; echo $COLOUR; echo wrong >&2; kill -0 $(cat pid) && id -u; exit 3"
    out, err, end = run(product, "plain", "sh", "-c", script)
    assert (err, end) == (b"wrong\n", TunnelEnd(code=3))
    assert out.startswith(b"of the run\nred\n")
    uid = run(product, "plain", "sh", "-c", "stat -c %u file")[0]
    assert out == b"of the run\nred\n" + uid


def test_bytes_pass_as_they_are_and_wait_for_their_reader(product: Product) -> None:
    begin(product, "bytes")
    data = os.urandom(5 << 20)
    tunnel = product.client.tunnels.exec("default", "bytes", ["cat"])
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: (tunnel.write(data), tunnel.end_input()))
        out, err, end = everything(tunnel)
        sending.result()
    assert (out == data, err, end) == (True, b"", TunnelEnd(code=0))


def test_signals_and_what_cannot_be_started(product: Product) -> None:
    begin(product, "ends")
    assert run(product, "ends", "sh", "-c", "kill -SEGV $$")[2] == TunnelEnd(signal=signal.SIGSEGV)
    end = run(product, "ends", "no-such-program")[2]
    assert end is not None and (end.reason, end.error[:15]) == ("failed", "no-such-program")
    tunnel = product.client.tunnels.exec(
        "default", "ends", ["sh", "-c", "trap 'exit 9' INT; echo; while :; do sleep 0.01; done"]
    )
    assert tunnel.read() == (FrameKind.OUTPUT, b"\n")
    tunnel.signal(signal.SIGINT)
    assert everything(tunnel)[2] == TunnelEnd(code=9)


def test_a_terminal_has_a_size_and_is_one_stream(product: Product) -> None:
    begin(product, "tty")
    script = "stty size; read line; stty size; tty; echo $TERM-$line >&2; ps -o stat= -p $$"
    tunnel = product.client.tunnels.exec(
        "default", "tty", ["sh", "-c", script], terminal=True, rows=33, columns=99, term="vt100"
    )
    first = tunnel.read()
    assert first is not None and first[1].startswith(b"33 99")
    tunnel.resize(44, 111)
    tunnel.write(b"hello\r")
    out, err, end = everything(tunnel)
    assert (err, end) == (b"", TunnelEnd(code=0))
    assert b"44 111\r\n/dev/pts/" in out and b"vt100-hello\r\n" in out
    tunnel = product.client.tunnels.exec("default", "tty", ["sleep", "600"], terminal=True)
    tunnel.write(b"\x03")
    assert everything(tunnel)[2] == TunnelEnd(signal=signal.SIGINT)


@pytest.mark.parametrize("leaves", ["command", "client", "run"])
def test_nothing_that_a_command_started_is_left(product: Product, leaves: str) -> None:
    """Of a command that ends, whose client leaves, or whose run ends: also what hides in a session of its own."""
    name = f"left-{leaves}"
    begin(product, name)
    mark = f"6{os.getpid()}{len(leaves)}"
    rest = "sleep 0.2" if leaves == "command" else "wait"
    script = f"setsid sh -c 'setsid sleep {mark} & sleep {mark}' & sleep {mark} & echo on; {rest}"
    tunnel = product.client.tunnels.exec("default", name, ["sh", "-c", script])
    assert tunnel.read() == (FrameKind.OUTPUT, b"on\n")
    product.wait_until(lambda: len(sleepers(mark)) == 3)
    if leaves == "client":
        tunnel.close()
    elif leaves == "run":
        product.client.workloads.cancel("default", name)
        end = everything(tunnel)[2]
        assert end is not None and end.reason == "ended"
    else:
        assert everything(tunnel)[2] == TunnelEnd(code=0)
    product.wait_until(lambda: not sleepers(mark), within_s=20)
    if leaves != "run":
        assert is_state(product, name, "running")()


def sleepers(mark: str) -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == b"sleep\0" + mark.encode() + b"\0":
                found.append(path)
    return found


def test_a_command_is_where_its_run_is(product: Product) -> None:
    begin(product, "where", "sh -c 'exec sleep 601'", resources={"cpu": "1", "memory": "64MiB"})
    shown = (
        "for n in mnt pid ipc uts; do readlink /proc/$1/ns/$n; done; cat /proc/$1/cgroup; "
        "grep -E '^(Cap|NoNew|Uid|Groups|Seccomp:)' /proc/$1/status"
    )
    pid = "P=$(for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q '^sleep 601' && echo ${p#/proc/}; done); "
    own = run(product, "where", "sh", "-c", f"set -- $$; {shown}")[0]
    theirs = run(product, "where", "sh", "-c", f"{pid}set -- $P; {shown}")[0]
    assert own == theirs and own.count(b"\n") > 10


def test_refusals(product: Product) -> None:
    product.client.workloads.submit({"name": "short", "command": "true", "retries": 0})
    product.client.workloads.wait([("default", "short")], timeout_s=60)
    with pytest.raises(ApiError) as refused:
        product.client.tunnels.exec("default", "short", ["true"])
    assert (refused.value.status, refused.value.code) == (409, "not_running")
    begin(product, "long")
    for fields, path in (
        ({}, "argv"),
        ({"argv": [""]}, "argv[0]"),
        ({"argv": ["a", "b\0"]}, "argv[1]"),
        ({"port": "x"}, "port"),
    ):
        with pytest.raises(ApiError) as refused:
            product.client.tunnels._open("default", "long", 0, TunnelBody(**fields))
        assert (refused.value.status, refused.value.path) == (422, path)
