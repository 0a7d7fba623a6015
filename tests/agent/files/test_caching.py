"""The cache of a run on its node: restored beside its inputs, saved whole, and never a reason to fail."""

from pathlib import Path

import grpc
import pytest

from roost.agent.files.caching import NOTE_NAME
from roost.files.manifest import Manifest, decode
from roost.model.records.files import RunInput
from roost.model.spec.files import CacheBlock, OutputBlock
from tests.agent.files.file_server import FileServer, node_of

CACHE = CacheBlock("{env:BRANCH}-{hash:*.txt}", [".cache"], ["main-"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "requirements.txt").write_text("a==1")
    return folder


def fill(folder: Path, text: str = "wheel") -> None:
    (folder / ".cache").mkdir(exist_ok=True)
    (folder / ".cache" / "a").write_text(text)


async def test_what_a_run_saved_is_there_for_the_next_one_with_the_same_files(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    tree = RunInput("", await server.store(source))
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(tree, cache=CACHE) == ""
        assert not (node.folder() / ".cache").exists()
        fill(node.folder())
        outputs = await node.collect(OutputBlock("**"), cache=CACHE)
        paths = [entry.path for entry in (await server.manifest(outputs)).entries]
        assert paths == [".cache", ".cache/a", "requirements.txt"], "its own note is no output"
        ((key, problem, detail),) = server.saved
        assert key.startswith("main-") and len(key) == 21 and (problem, detail) == ("", "")
        assert await node.have(tree, token=2, cache=CACHE) == ""
        assert (node.folder(2) / ".cache" / "a").read_text() == "wheel"
        await node.collect(token=2, cache=CACHE)
        assert len(server.saved) == 1, "the key is there: nothing is sent"


async def test_other_files_make_another_key_and_get_the_entry_of_a_prefix(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", await server.store(source)), cache=CACHE) == ""
        fill(node.folder())
        await node.collect(cache=CACHE)
        server.cache["main-"] = next(iter(server.cache.values()))
        (source / "requirements.txt").write_text("a==2")
        (source / ".cache").mkdir()
        (source / ".cache" / "a").write_text("of the tree")
        assert await node.have(RunInput("", await server.store(source)), token=2, cache=CACHE) == ""
        assert (node.folder(2) / ".cache" / "a").read_text() == "of the tree", "inputs count more"
        await node.collect(token=2, cache=CACHE)
        assert len({key for key, _, _ in server.saved}) == 2


async def test_an_entry_that_does_not_come_leaves_nothing_of_it_and_the_run_begins(
    tmp_path: Path, source: Path
) -> None:
    server = FileServer()
    tree = RunInput("", await server.store(source))
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(tree, cache=CACHE) == ""
        fill(node.folder())
        await node.collect(cache=CACHE)
        (manifest,) = server.cache.values()
        for digest in [entry.digest for entry in (await _manifest(server, manifest)).files()]:
            await server.blobs.delete(digest)
    async with node_of(tmp_path / "other", server) as node:
        assert await node.have(tree, cache=CACHE) == ""
        assert sorted(path.name for path in node.folder().iterdir()) == [NOTE_NAME, "requirements.txt"]
        assert server.saved[-1][1] == "not_restored"


async def test_a_server_that_refuses_caches_is_no_obstacle(tmp_path: Path, source: Path) -> None:
    server = FileServer()
    for method in ("RestoreCache", "SaveCache"):
        server.refuse(method, *[grpc.StatusCode.NOT_FOUND] * 3)
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", await server.store(source)), cache=CACHE) == ""
        fill(node.folder())
        assert (await node.collect(OutputBlock("*.txt"), cache=CACHE)).files is not None
        assert server.cache == {}


@pytest.mark.parametrize("problem", ["empty", "incomplete", "not_stored", "bad_key"])
async def test_a_cache_is_saved_whole_or_not_at_all(tmp_path: Path, source: Path, problem: str) -> None:
    server = FileServer()
    async with node_of(tmp_path / "agent", server) as node:
        assert await node.have(RunInput("", await server.store(source)), cache=CACHE) == ""
        if problem != "empty":
            fill(node.folder())
        if problem == "incomplete":
            (node.folder() / ".cache" / "python").symlink_to("/usr/bin/python3")
        if problem == "not_stored":
            server.refuse("PutFiles", grpc.StatusCode.NOT_FOUND)
        if problem == "bad_key":
            (node.folder() / NOTE_NAME).write_text("{")
        assert (await node.collect(cache=CACHE)).files is None
        assert server.saved[0][1] == problem
        assert problem != "incomplete" or server.saved[0][2] == ".cache/python"
        assert server.cache == {}


async def _manifest(server: FileServer, digest: str) -> Manifest:
    return decode(await server.read(digest))
