"""Inputs on their way into a work directory: merged, cached, fetched once, and never half there."""

import asyncio
import hashlib
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from roost.agent.files import client
from roost.agent.files.fetch import remove_tree
from roost.agent.files.progress import LeaveInputs
from roost.model.records.files import RunInput
from roost.ports.blobs import digest_of
from tests.agent.files.file_server import DEADLINE_S, FileServer, node_of

LARGE = os.urandom(3 << 20)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_bytes(b"small")
    (folder / "again").write_bytes(b"small")
    (folder / "sub" / "large").write_bytes(LARGE)
    (folder / "sub" / "run").write_bytes(b"#!/bin/sh\n")
    (folder / "sub" / "run").chmod(0o755)
    (folder / "link").symlink_to("sub/run")
    return folder


async def test_inputs_become_the_work_directory(tmp_path: Path, source: Path) -> None:
    server = FileServer(reply_bytes=1 << 20)
    digest = await server.store(source)
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", digest), RunInput("in/deep", digest, "sub/r*")) == ""
        assert (node.folder() / "again").read_bytes() == b"small"
        assert (node.folder() / "sub" / "large").read_bytes() == LARGE
        assert os.access(node.folder() / "link", os.X_OK)
        assert [path.name for path in (node.folder() / "in" / "deep").rglob("*")] == ["sub", "run"]
        calls = server.calls["GetFiles"]
        assert await node.have(RunInput("", digest), token=2) == ""
        assert (node.folder(2) / "sub" / "large").read_bytes() == LARGE
        (node.folder(2) / "a").write_bytes(b"changed by the task")
        assert await node.have(RunInput("", digest), token=3) == ""
        assert (node.folder(3) / "a").read_bytes() == b"small", "no task changes the cache"
        assert server.calls["GetFiles"] == calls, "and nothing is fetched twice"


async def test_runs_that_begin_together_fetch_a_shared_input_once(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    digest = await server.store(source)
    async with node_of(tmp_path / "agent", server) as node:
        for token in range(1, 41):
            node.fetch(RunInput("", digest), token=token)
        await node.until(lambda: len(node.fetched) == 40)
        assert set(node.fetched.values()) == {None}
        assert set(server.sent.values()) == {1}
        assert all((node.folder(token) / "sub" / "large").read_bytes() == LARGE for token in range(1, 41))


async def test_an_agent_after_another_uses_its_cache_and_removes_what_it_left(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    digest = await server.store(source)
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", digest)) == ""
        (node.folder() / "half").write_bytes(b"left behind")
        (node.folder() / "sub").chmod(0o500)
    calls = server.calls["GetFiles"]
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", digest)) == ""
        assert sorted(path.name for path in node.folder().iterdir()) == ["a", "again", "link", "sub"]
    assert server.calls["GetFiles"] == calls


async def test_a_cache_that_is_too_small_is_gone_round(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    digest = await server.store(source)
    async with node_of(tmp_path / "agent", server, cache_bytes=100) as node:
        assert await node.have(RunInput("", digest)) == ""
        assert (node.folder() / "sub" / "large").read_bytes() == LARGE
        assert (node.folder() / "a").read_bytes() == b"small"


async def test_of_two_inputs_with_one_path_the_later_one_stays(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    older = await server.store(source)
    (source / "a").write_bytes(b"newer")
    newer = await server.store(source)
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("x", older), RunInput("x", newer, "a*")) == ""
        assert (node.folder() / "x" / "a").read_bytes() == b"newer"
        assert await node.have(RunInput("x", newer), RunInput("x", older, "none*", optional=True), token=2) == ""
        assert (node.folder(2) / "x" / "a").read_bytes() == b"newer"


async def test_a_file_where_another_input_has_a_folder_is_named(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    digest = await server.store(source)
    async with node_of(tmp_path / "agent", server) as node:
        inputs = [RunInput("sub", digest, "a"), RunInput("", digest), RunInput("sub/a", digest)]
        assert await node.have(*inputs) == "same_path sub/a"
        assert not node.folder().exists()


async def test_files_that_are_not_there_are_a_problem_and_leave_no_directory(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    digest = await server.store(source)
    await server.blobs.delete(digest_of(LARGE))
    async with node_of(tmp_path / "agent", server) as node:
        problem = await node.have(RunInput("", digest))
        assert digest_of(LARGE) in problem
        assert not node.folder().exists()


async def test_trouble_is_waited_out_and_refusals_are_not(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    digest = await server.store(source)
    server.refuse("GetFiles", grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED)
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", digest)) == ""
        server.refuse("GetFiles", *[grpc.StatusCode.PERMISSION_DENIED] * 5)
        other = await server.store(source / "sub")
        assert "refused by the test" in await node.have(RunInput("", other), token=2)


async def test_a_fetch_that_is_left_is_not_answered_and_leaves_no_directory(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    digest = await server.store(source)
    async with node_of(tmp_path / "agent", server) as node:
        server.is_open.clear()
        node.fetch(RunInput("", digest))
        async with asyncio.timeout(DEADLINE_S):
            while not server.calls:
                await asyncio.sleep(0)
        node.transfers.perform(LeaveInputs(1))
        server.is_open.set()
        assert await node.have(RunInput("", digest), token=2) == ""
        assert node.fetched == {} and not node.folder(1).exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MiB: room for one of our inputs in the cache, and one in a work directory."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(path)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("may not mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_a_full_disk_is_a_problem_unless_the_cache_can_make_room(small_disk: Path, source: Path) -> None:
    server = FileServer()
    first = await server.store(source)
    (source / "sub" / "large").write_bytes(LARGE[::-1])
    second = await server.store(source)
    async with node_of(small_disk, server) as node:
        assert await node.have(RunInput("", first)) == ""
        remove_tree(node.folder())
        assert await node.have(RunInput("", second), token=2) == "", "the first one has left the cache"
        assert (node.folder(2) / "sub" / "large").read_bytes() == LARGE[::-1]
        assert await node.have(RunInput("", first), token=3) == "disk_full No space left on device"
        assert not node.folder(3).exists()
        remove_tree(node.folder(2))
        assert await node.have(RunInput("", first), token=4) == ""


class Site(BaseHTTPRequestHandler):
    """Answers by path; a redirect where the path names one."""

    def __init__(self, pages: dict[str, bytes], *given: object) -> None:
        self.pages = pages
        super().__init__(*given)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        page = self.pages.get(self.path)
        if page is None:
            return self.send_error(404)
        if page.startswith(b"-> "):
            self.send_response(302)
            self.send_header("Location", page[3:].decode())
            self.end_headers()
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(page) - start))
        self.end_headers()
        self.wfile.write(page[start:])

    def do_PUT(self) -> None:
        self.pages[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def pages() -> dict[str, bytes]:
    return {}


@pytest.fixture
def site(pages: dict[str, bytes]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, pages)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("cache_bytes", [64 << 20, 100])
async def test_a_file_from_a_url(tmp_path: Path, site: str, pages: dict[str, bytes], cache_bytes: int) -> None:
    pages |= {"/tool": LARGE, "/moved": b"-> /tool"}
    async with node_of(tmp_path / "agent", FileServer(), cache_bytes) as node:
        assert await node.have(RunInput("bin/tool", url=f"{site}/moved", sha256=sha256(LARGE))) == ""
        assert (node.folder() / "bin" / "tool").read_bytes() == LARGE
        assert not list((tmp_path / "agent" / "inputs").glob("draft-*"))


async def test_a_url_with_other_bytes_or_none_is_a_problem(tmp_path: Path, site: str, pages: dict[str, bytes]) -> None:
    pages |= {"/tool": b"something else", "/file": b"-> file:///etc/passwd"}
    async with node_of(tmp_path / "agent", FileServer()) as node:
        problem = await node.have(RunInput("tool", url=f"{site}/tool", sha256=sha256(LARGE)))
        assert problem == "wrong_bytes tool"
        problem = await node.have(RunInput("tool", url=f"{site}/none?password=1", sha256=sha256(LARGE)))
        assert problem == "url_failed tool 404 127.0.0.1 answers 404 Not Found"
        problem = await node.have(RunInput("tool", url=f"{site}/file", sha256=sha256(LARGE)))
        assert problem == "url_failed tool 302 127.0.0.1 redirects to another scheme"
        assert not node.folder().exists() and not list((tmp_path / "agent" / "inputs").glob("draft-*"))


async def test_blobs_come_straight_from_where_they_are(
    tmp_path: Path, source: Path, site: str, pages: dict[str, bytes]
) -> None:
    server = FileServer()
    digest = await server.store(source)
    pages |= {"/large": LARGE, "/small": b"small"}
    server.links = {digest_of(LARGE): f"{site}/large", digest_of(b"small"): f"{site}/small"}
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", digest)) == ""
        assert (node.folder() / "sub" / "large").read_bytes() == LARGE
        assert (node.folder() / "a").read_bytes() == b"small"
        assert server.bytes_got < 10_000


async def test_a_node_that_does_not_reach_a_link_gets_blobs_through_the_server(
    tmp_path: Path, source: Path, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)
    server = FileServer()
    digest = await server.store(source)
    server.links = {digest: f"{site}/none", digest_of(LARGE): "http://127.0.0.1:9/large"}
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", digest)) == ""
        assert (node.folder() / "sub" / "large").read_bytes() == LARGE
