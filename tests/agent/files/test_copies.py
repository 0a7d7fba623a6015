"""Copies on a node: where files go, what is read, what is refused, and that nothing is ever seen in part."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from roost.agent.files import copies
from roost.agent.files.copies import Copies
from roost.agent.files.fetch import Flights
from roost.files import select
from roost.files.cache import InputCache
from roost.files.manifest import FileEntry, Manifest, encode
from roost.model.protocol import CopyOrder, CopyProblem, CopyReport
from roost.model.records.files import OutputGap, OutputProblem
from roost.ports.blobs import digest_of
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_copy, unpack_copy_report
from tests.agent.files.file_server import DEADLINE_S, FileServer

LARGE = os.urandom(9 << 20)
GIB = 1 << 30


class CopyServer(FileServer):
    """What a leader says of copies: `orders` are wanted, `reports` came."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[CopyOrder] = []
        self.reports: dict[str, CopyReport] = {}
        self.changed = asyncio.Event()

    async def call(self, method: str, data: bytes) -> bytes:
        if method == "TakeCopies":
            return pb.TakeCopiesReply(copies=[pack_copy(order) for order in self.orders]).SerializeToString()
        if method == "ReportCopy":
            report = unpack_copy_report(pb.CopyReport.FromString(data))
            self.reports[report.id] = report
            self.orders = [order for order in self.orders if order.id != report.id]
            self.changed.set()
            return b""
        return await super().call(method, data)

    async def file(self, data: bytes, name: str = "f") -> str:
        await self.keep_large(data)
        return await self.keep(encode(Manifest((FileEntry(name, 0o644, len(data), digest_of(data)),))))

    async def keep_large(self, data: bytes) -> None:
        self.blobs._blobs[digest_of(data)] = (data, 0)  # more than a batch may have


class CopyNode:
    def __init__(self, directory: Path, server: CopyServer) -> None:
        self.directory, self.server = directory, server
        self.running = {1}
        self.work = directory / "work" / "1"
        self.work.mkdir(parents=True, exist_ok=True)
        self._cache: InputCache | None = None
        self.copies = Copies(
            str(directory), self._open, Flights(), server.call, lambda token: token in self.running, lambda: 0
        )
        self._count = 0

    async def _open(self) -> InputCache:
        if self._cache is None:
            self._cache = InputCache(self.directory / "inputs", 64 << 20)
        return self._cache

    def begin(self, path: str, digest: str = "", name: str = "", *, is_file: bool = True, room: int = GIB) -> CopyOrder:
        self._count += 1
        order = CopyOrder(f"c{self._count}", 1, path, digest, name, room, is_file and bool(digest))
        self.server.orders.append(order)
        self.copies.wake()
        return order

    async def report(self, order: CopyOrder) -> CopyReport:
        async with asyncio.timeout(DEADLINE_S):
            while order.id not in self.server.reports:
                self.server.changed.clear()
                await self.server.changed.wait()
        return self.server.reports[order.id]

    async def into(self, path: str, digest: str, name: str = "f", *, is_file: bool = True) -> CopyReport:
        return await self.report(self.begin(path, digest, name, is_file=is_file))

    async def out_of(self, path: str, room: int = GIB) -> CopyReport:
        return await self.report(self.begin(path, room=room))


@asynccontextmanager
async def copying_node(directory: Path, server: CopyServer | None = None) -> AsyncIterator[CopyNode]:
    node = CopyNode(directory, server or CopyServer())
    task = asyncio.ensure_future(node.copies.run())
    try:
        yield node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("path", "place"),
    [("", "f"), (".", "f"), ("there", "there/f"), ("there/", "there/f"), ("new", "new"), ("new/", "new/f"),
     ("a/b/new", "a/b/new"), ("link", "there/f"), ("old", "old"), ("link/old", "there/old")],
)  # fmt: skip
async def test_a_file_goes_where_cp_puts_it(tmp_path: Path, path: str, place: str) -> None:
    async with copying_node(tmp_path) as node:
        (node.work / "there").mkdir()
        (node.work / "link").symlink_to("there")
        for old in ("old", "there/old"):
            (node.work / old).write_bytes(b"old")
        report = await node.into(path, await node.server.file(LARGE))
        assert (report.problem, report.place) == (None, place)
        assert (node.work / place).read_bytes() == LARGE
        assert not list((tmp_path / "copies").rglob("c*")), "nothing is left of its way"


@pytest.mark.parametrize(
    ("path", "name", "place"),
    [("", "tree", "tree/"), ("", "", ""), ("there", "tree", "there/tree/"), ("new", "tree", "new/"),
     ("new/", "", "new/")],
)  # fmt: skip
async def test_a_folder_goes_where_cp_puts_it(tmp_path: Path, path: str, name: str, place: str) -> None:
    source = tmp_path / "source"
    (source / "in").mkdir(parents=True)
    (source / "empty").mkdir(mode=0o500)
    (source / "in" / "file").write_bytes(b"x")
    (source / "to").symlink_to("in/file")
    async with copying_node(tmp_path) as node:
        (node.work / "there").mkdir()
        report = await node.into(path, await node.server.store(source), name, is_file=False)
        assert report.problem is None and report.place == place.strip("/")
        assert (node.work / place / "to").read_bytes() == b"x"
        assert (node.work / place / "empty").stat().st_mode & 0o777 == 0o500


async def test_an_empty_folder_and_one_with_one_file_stay_folders(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    async with copying_node(tmp_path) as node:
        assert (await node.into("a", await node.server.store(tmp_path / "source"), is_file=False)).place == "a"
        (tmp_path / "source" / "f").write_bytes(b"")
        assert (await node.into("b", await node.server.store(tmp_path / "source"), is_file=False)).place == "b"
        assert list((node.work / "a").iterdir()) == [] and (node.work / "b" / "f").is_file()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("out/x", "out/x: a link leads out of the work directory"),
        ("abs", "abs: a link leads out of the work directory"),
        ("file/x", "file/x: file is not a folder"),
        ("folder", "folder/f: a file belongs here, and there is a folder"),
    ],
)
async def test_a_bad_place_is_refused_with_its_path_and_changes_nothing(
    tmp_path: Path, path: str, message: str
) -> None:
    async with copying_node(tmp_path) as node:
        (node.work / "out").symlink_to("../..")
        (node.work / "abs").symlink_to("/tmp")
        (node.work / "file").write_bytes(b"old")
        (node.work / "folder" / "f").mkdir(parents=True)
        before = sorted(tmp_path.glob("work/**"))
        report = await node.into(path, await node.server.file(b"new"))
        assert (report.problem, report.message) == (CopyProblem.REFUSED, message)
        assert sorted(tmp_path.glob("work/**")) == before and (node.work / "file").read_bytes() == b"old"


async def test_a_file_is_seen_whole_or_not_at_all_also_after_an_agent_died(tmp_path: Path) -> None:
    """The server answers no more in the middle; the agent ends as if killed, and another one begins."""
    server = CopyServer()
    async with copying_node(tmp_path, server) as node:
        (node.work / "f").write_bytes(b"old")
        digest = await server.file(LARGE)
        server.refuse("GetFiles", *[grpc.StatusCode.UNAVAILABLE] * 3)
        order = node.begin("f", digest, "f")
        async with asyncio.timeout(DEADLINE_S):
            while not server.calls["GetFiles"]:
                await asyncio.sleep(0)
        server.is_open.clear()
    assert (tmp_path / "work" / "1" / "f").read_bytes() == b"old"
    (tmp_path / "copies" / "1" / order.id).mkdir(parents=True, exist_ok=True)  # what kill -9 leaves
    server.is_open.set()
    async with copying_node(tmp_path, server) as node:
        assert (await node.report(order)).problem is None
        assert (node.work / "f").read_bytes() == LARGE and not list((tmp_path / "copies").rglob("c*"))


async def test_a_run_that_ends_in_the_middle_ends_its_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LOOK_S", 0.01)
    server = CopyServer()
    async with copying_node(tmp_path, server) as node:
        server.is_open.clear()
        order = node.begin("f", await server.file(LARGE), "f")
        async with asyncio.timeout(DEADLINE_S):
            while not server.calls["GetFiles"]:
                await asyncio.sleep(0)
        node.running.clear()
        report = await node.report(order)
        assert report.problem == CopyProblem.NOT_RUNNING and not (node.work / "f").exists()


async def test_a_folder_is_read_with_a_list_of_what_cannot_travel(tmp_path: Path) -> None:
    async with copying_node(tmp_path) as node:
        (node.work / "d" / "empty").mkdir(parents=True)
        (node.work / "d" / "file").write_bytes(b"x")
        (node.work / "d" / "leaves").symlink_to("../file")
        os.mkfifo(node.work / "d" / "pipe")
        report = await node.out_of("d")
        assert report.outputs is not None and not report.is_file and report.problem is None
        manifest = await node.server.manifest(report.outputs)
        assert [entry.path for entry in manifest.entries] == ["empty", "file"]
        assert report.outputs.gaps == (
            OutputGap(OutputProblem.NOT_A_FILE, "leaves"), OutputGap(OutputProblem.NOT_A_FILE, "pipe"),
        )  # fmt: skip


async def test_names_that_look_like_patterns_are_names(tmp_path: Path) -> None:
    async with copying_node(tmp_path) as node:
        for name in ("*", "a", "[b]", "**"):
            (node.work / name).write_bytes(name.encode())
        for name in ("*", "[b]", "**"):
            report = await node.out_of(name)
            assert report.is_file and report.outputs is not None
            (entry,) = (await node.server.manifest(report.outputs)).entries
            assert entry.path == name and isinstance(entry, FileEntry) and entry.digest == digest_of(name.encode())


async def test_a_file_that_grows_has_its_first_size_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with copying_node(tmp_path) as node:
        log = node.work / "log"
        log.write_bytes(b"one\n")
        hash_file = select._Selecting._file

        def grow(*args: object) -> object:
            with log.open("ab") as file:
                file.write(b"two\n")
            return hash_file(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(select._Selecting, "_file", grow)
        report = await node.out_of("log")
        assert (report.grown, report.is_file) == (("log",), True) and report.outputs is not None
        (entry,) = (await node.server.manifest(report.outputs)).entries
        assert isinstance(entry, FileEntry) and await node.server.read(entry.digest) == b"one\n"


async def test_a_file_that_is_written_anew_is_not_copied_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with copying_node(tmp_path) as node:
        (node.work / "f").write_bytes(b"before")
        missing = node.server.blobs.missing

        async def change(digests: list[str]) -> object:
            (node.work / "f").write_bytes(b"after!")
            return await missing(digests)

        monkeypatch.setattr(node.server.blobs, "missing", change)
        report = await node.out_of("f")
        assert report.problem == CopyProblem.REFUSED and "changed while it was read" in report.message


@pytest.mark.parametrize(
    ("path", "problem", "message"),
    [
        ("none", CopyProblem.NOT_FOUND, "none: there is no such file in the work directory"),
        ("file/", CopyProblem.REFUSED, "file/: is a file, not a folder"),
        ("socket", CopyProblem.REFUSED, "socket: is a socket, and cannot be copied"),
        ("up", CopyProblem.REFUSED, "up: a link leads out of the work directory"),
        ("many", CopyProblem.TOO_LARGE, "many: there are more than the 100 bytes that may be copied"),
    ],
)
async def test_what_cannot_be_read_is_refused_with_its_path(
    tmp_path: Path, path: str, problem: CopyProblem, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with copying_node(tmp_path) as node:
        monkeypatch.chdir(node.work)
        (node.work / "file").write_bytes(b"x")
        (node.work / "many").write_bytes(bytes(101))
        (node.work / "up").symlink_to("..")
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("socket")
            report = await node.out_of(path, room=100)
        assert (report.problem, report.message) == (problem, message)
        assert not node.server.calls["PutFiles"], "nothing was sent"
