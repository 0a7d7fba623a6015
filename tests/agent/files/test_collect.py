"""Outputs on their way to the server: what is sent, in which pieces, and what the report says of the rest."""

import os
from pathlib import Path

import grpc
import pytest

from roost.agent.files import client
from roost.files.manifest import FileEntry
from roost.model.records.files import OutputGap, OutputProblem
from roost.model.spec.files import OutputBlock
from roost.ports.blobs import digest_of
from tests.agent.files.file_server import FileServer, node_of

LARGE = os.urandom(20 << 20)


def left_by_run(folder: Path) -> None:
    (folder / "dist").mkdir(parents=True)
    (folder / "dist" / "a").write_bytes(b"a")
    (folder / "dist" / "large").write_bytes(LARGE)
    (folder / ".roost-result.json").write_bytes(b"{}")


async def test_outputs_are_stored_and_described(tmp_path: Path) -> None:
    server = FileServer()
    async with node_of(tmp_path, server) as node:
        left_by_run(node.folder())
        outputs = await node.collect(OutputBlock("**"), OutputBlock("none", required=True))
        assert outputs.gaps == (OutputGap(OutputProblem.MISSING, "none", required=True),)
        assert outputs.files is not None and (outputs.files.files, outputs.files.size) == (2, 1 + len(LARGE))
        manifest = await server.manifest(outputs)
        assert [entry.path for entry in manifest.entries] == ["dist", "dist/a", "dist/large"]
        assert await server.blobs.size(digest_of(LARGE)) == len(LARGE)
        puts = server.calls["PutFiles"]
        assert await node.collect(OutputBlock("**"), OutputBlock("none", required=True)) == outputs
        assert server.calls["PutFiles"] == puts, "what is there is not sent again"


async def test_many_small_files_are_few_calls(tmp_path: Path) -> None:
    server = FileServer()
    async with node_of(tmp_path, server) as node:
        node.folder().mkdir(parents=True)
        for number in range(1_200):
            (node.folder() / str(number)).write_bytes(b"%d" % number)
        outputs = await node.collect(OutputBlock("*"))
        assert outputs.files is not None and outputs.files.files == 1_200
        assert server.calls["PutFiles"] <= 4 and server.calls["MissingFiles"] <= 3


async def test_a_large_file_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    server = FileServer()
    server.refuse("PutFiles", *[grpc.StatusCode.UNAVAILABLE] * 2)
    async with node_of(tmp_path, server) as node:
        left_by_run(node.folder())
        outputs = await node.collect(OutputBlock("dist/large"))
        assert outputs.gaps == () and await server.blobs.size(digest_of(LARGE)) == len(LARGE)


async def test_a_node_that_does_not_reach_a_link_sends_through_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)
    server = FileServer()
    server.links = {digest_of(LARGE): "http://127.0.0.1:9/large"}
    async with node_of(tmp_path, server) as node:
        left_by_run(node.folder())
        outputs = await node.collect(OutputBlock("dist/large"))
        assert outputs.gaps == () and await server.blobs.size(digest_of(LARGE)) == len(LARGE)


async def test_no_files_are_no_set(tmp_path: Path) -> None:
    async with node_of(tmp_path, FileServer()) as node:
        node.folder().mkdir(parents=True)
        assert (await node.collect(OutputBlock("*"))).files is None
        node.folder().rmdir()
        outputs = await node.collect(OutputBlock("*", required=True))
        assert outputs.gaps == (OutputGap(OutputProblem.MISSING, "*", required=True),)


async def test_size_max_is_of_all_files_of_a_pattern(tmp_path: Path) -> None:
    async with node_of(tmp_path, FileServer()) as node:
        left_by_run(node.folder())
        outputs = await node.collect(OutputBlock("dist/*", size_max="1MiB"), OutputBlock("dist/a"))
        assert outputs.gaps == (OutputGap(OutputProblem.TOO_LARGE, "dist/*"),)
        assert outputs.files is not None and outputs.files.files == 1


async def test_a_server_that_refuses_leaves_a_gap_for_each_pattern(tmp_path: Path) -> None:
    server = FileServer()
    server.refuse("MissingFiles", *[grpc.StatusCode.PERMISSION_DENIED] * 5)
    async with node_of(tmp_path, server) as node:
        left_by_run(node.folder())
        outputs = await node.collect(OutputBlock("dist/a", required=True))
        assert outputs.files is None
        assert outputs.gaps == (OutputGap(OutputProblem.NOT_STORED, "dist/a", required=True),)


class ChangingServer(FileServer):
    """A process that outlived the run changes a file once it was hashed."""

    path: Path

    async def call(self, method: str, data: bytes) -> bytes:
        if method == "MissingFiles" and self.path.exists() and self.path.stat().st_size == len(LARGE):
            self.path.write_bytes(LARGE[:-1] + b"!")
            os.truncate(self.path, len(LARGE) - 1)
        return await super().call(method, data)


async def test_a_file_that_changes_is_a_gap(tmp_path: Path) -> None:
    server = ChangingServer()
    async with node_of(tmp_path, server) as node:
        left_by_run(node.folder())
        server.path = node.folder() / "dist" / "large"
        outputs = await node.collect(OutputBlock("dist/*"))
        assert outputs.gaps == (OutputGap(OutputProblem.CHANGED, "dist/large"),)
        manifest = await server.manifest(outputs)
        assert [entry.path for entry in manifest.entries if isinstance(entry, FileEntry)] == ["dist/a"]
