"""roost store: copies, checks, backups and restores between real stores, and what they refuse."""

import asyncio
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from roost_lab.components.ports import free_ports
from roost_lab.components.postgres import running

from roost.cli import root
from roost.cli.common.exit_codes import FAILED, USAGE
from roost.core.state.records import SERIALS_PER_MS, Meta
from roost.ports.store import Change, SharedStore, Snapshot, require
from roost.server.maintenance.backup import REVISIONS_UNKNOWN, as_of_now
from roost.stores import inspect
from roost.stores.copy import MARK
from roost.stores.factory import open_store
from tests.cli.serving import Served, serving, wait_until
from tests.components.etcd import shared_cluster
from tests.core.scene import Scene, job, service

NUMBERS = itertools.count()
Urls = Callable[[], str]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Urls]:
    with running() as server:
        yield lambda: f"{server.dsn}?schema=place_{next(NUMBERS)}"


@pytest.fixture
def etcd() -> Urls:
    return lambda: f"etcd://{','.join(shared_cluster().endpoints)}/store-{os.getpid()}-{next(NUMBERS)}"


@pytest.fixture
def scene() -> Snapshot:
    """A small life: a state as a server would have left it."""
    scene = Scene("a", "b")
    scene.submit(job("one", count=3), service("two"))
    scene.running("one.0", "two.0")
    scene.ended("one.0")
    return scene.memory.snapshot()


@pytest.fixture
def source(tmp_path: Path, scene: Snapshot) -> str:
    url = f"sqlite:{tmp_path / 'source'}"
    put(url, scene)
    return url


def put(url: str, snapshot: Snapshot) -> None:
    """As a server would: commit by commit, up to the revision of the snapshot."""

    async def work() -> None:
        store = open_store(url)
        epoch = require(await store.lead("server")).epoch
        for _ in range(snapshot.revision - 1):
            require(await store.commit(epoch, []))
        require(await store.commit(epoch, snapshot.records))
        await store.close()

    asyncio.run(work())


def loaded(url: str) -> Snapshot:
    async def work() -> Snapshot:
        store = open_store(url)
        try:
            return require(await store.load())
        finally:
            await store.close()

    return asyncio.run(work())


def typed(*typed_words: str) -> Result:
    return CliRunner().invoke(root, ["store", *typed_words], catch_exceptions=False)


def done(*message: str) -> Result:
    result = typed(*message)
    assert result.exit_code == 0, result.output
    return result


def same(url: str, snapshot: Snapshot) -> bool:
    found = loaded(url)
    return found.revision == snapshot.revision and sorted(found.records) == sorted(snapshot.records)


# copy


def test_once_around_all_stores_everything_is_as_it_was(
    tmp_path: Path, scene: Snapshot, source: str, postgres: Urls, etcd: Urls
) -> None:
    stations = [source, postgres(), etcd(), f"sqlite:{tmp_path / 'back'}"]
    for start, end in itertools.pairwise(stations):
        done("copy", start, end, "--watch", "1ms")
        assert same(end, scene), end
        assert done("check", end).exit_code == 0
    assert same(source, scene), "where it came from is as it was"


def test_a_server_goes_on_in_another_store_as_if_nothing_had_happened(tmp_path: Path, postgres: Urls) -> None:
    home, url = tmp_path / "home", postgres()
    home.mkdir()
    with serving(home, "server") as served, served.client() as client:
        client.workloads.submit({"kind": "job", "name": "nightly", "command": "true", "count": 3})
        before = client.status()
    done("copy", str(home), url)
    agents = f"127.0.0.1:{free_ports(1)[0]}"
    arguments = ("--store", url, "--agents-listen", agents, "--key-file", str(home / "seal.key"), "--name", "s1")
    with serving(home, "server", *arguments) as served, served.client() as client:
        wait_until(lambda: client.status().ready)
        assert client.workloads.get("default", "nightly").counts == {"queued": 3}
        assert client.status().revision >= before.revision
        refused = typed("copy", url, str(tmp_path / "away"))
        assert "is led by s1 at http" in refused.stderr
        done("check", url)
        done("backup", url, str(tmp_path / "file"))


def test_what_happened_is_reported_beside_the_output(source: str, tmp_path: Path) -> None:
    result = done("copy", source, str(tmp_path / "to"))
    assert result.stdout == ""
    assert "all compared" in result.stderr


def test_a_target_that_is_not_empty_is_refused_and_emptied_with_force(
    tmp_path: Path, scene: Snapshot, source: str
) -> None:
    target = str(tmp_path / "target")
    put(target, Snapshot(90, [Change("node", "old", b"1")]))
    refused = typed("copy", source, target)
    assert refused.exit_code == FAILED
    assert "is not empty" in refused.stderr
    assert "--force" in refused.stderr
    assert loaded(target).records == [Change("node", "old", b"1")]
    done("copy", source, target, "--force")
    found = loaded(target)
    assert sorted(found.records) == sorted(scene.records)
    assert found.revision > 90, "clients of that store have seen revision 90 already"


@pytest.mark.parametrize("message", [(), ("--live",)])
def test_a_source_that_is_not_there_is_refused_and_not_made(tmp_path: Path, message: tuple[str, ...]) -> None:
    refused = typed("copy", str(tmp_path / "nowhere"), str(tmp_path / "to"), *message)
    assert refused.exit_code == FAILED
    assert "there is no store of Roost" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_schema_that_is_not_there_is_not_made_by_looking(postgres: Urls, tmp_path: Path) -> None:
    url = postgres()
    for _ in range(2):
        assert "there is no store of Roost" in typed("check", url).stderr
        assert "there is no store of Roost" in typed("backup", url, str(tmp_path / "file")).stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_cannot_be_copied_to_itself(source: str) -> None:
    assert "to itself" in typed("copy", source, source.removeprefix("sqlite:")).stderr


def test_nothing_is_copied_from_or_to_memory(source: str) -> None:
    assert typed("copy", source, "memory:").exit_code == USAGE
    assert typed("check", "memory:").exit_code == USAGE


def test_a_source_of_an_unfinished_copy_is_refused(tmp_path: Path, scene: Snapshot) -> None:
    url = str(tmp_path / "half")
    put(url, Snapshot(3, [*scene.records, MARK]))
    assert "is not whole" in typed("copy", url, str(tmp_path / "to")).stderr
    assert "is not whole" in typed("backup", url, str(tmp_path / "file")).stderr
    assert "unfinished copy run it again with --force" in typed("check", url).stdout


def test_a_file_that_a_server_has_is_refused_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with serving(home, "server") as served:
        assert _in_use(served, "copy", str(home), str(tmp_path / "to"))
        assert _in_use(served, "copy", str(home), str(tmp_path / "to"), "--live")
        assert _in_use(served, "check", str(home))
        assert _in_use(served, "backup", str(home), str(tmp_path / "file"))
        monkeypatch.setenv("ROOST_CONFIG", str(home / "client.toml"))
        assert "the server at" in done("backup", "server", str(tmp_path / "told")).stdout
    done("restore", str(tmp_path / "told"), str(tmp_path / "back"))
    done("check", str(home))
    done("copy", str(home), str(tmp_path / "to"))


def _in_use(served: Served, *message: str) -> bool:
    result = typed(*message)
    return result.exit_code == FAILED and f"process {served.process.pid}" in result.stderr


def test_a_shared_store_that_is_led_is_copied_only_as_of_a_moment(
    tmp_path: Path, scene: Snapshot, postgres: Urls
) -> None:
    url, target = postgres(), str(tmp_path / "copy")
    put(url, scene)

    async def led(*message: str) -> Result:
        """Type a command while a server leads and renews."""
        store = open_store(url)
        assert isinstance(store, SharedStore)
        epoch = require(await store.lead("busy server")).epoch
        typing = asyncio.ensure_future(asyncio.to_thread(typed, *message))
        while not typing.done():
            require(await store.renew(epoch))
            await asyncio.wait((typing,), timeout=0.05)
        await store.close()
        return typing.result()

    refused = asyncio.run(led("copy", url, target))
    assert refused.exit_code == FAILED
    assert "is led by busy server" in refused.stderr
    assert "--live" in refused.stderr
    into = asyncio.run(led("copy", f"sqlite:{tmp_path / 'other'}", url, "--force"))
    assert into.exit_code == FAILED
    assert asyncio.run(led("copy", url, target, "--live")).exit_code == 0
    found = loaded(target)
    assert found.revision == scene.revision + REVISIONS_UNKNOWN
    assert _but_meta(found) == _as_it_goes_on(scene)
    assert asyncio.run(led("restore", str(_backup(tmp_path, url)), url, "--force")).exit_code == FAILED
    assert same(url, scene)


def _backup(tmp_path: Path, url: str) -> Path:
    done("backup", url, str(tmp_path / "file"))
    return tmp_path / "file"


def _but_meta(snapshot: Snapshot) -> list[Change]:
    return sorted(record for record in snapshot.records if record.kind != "meta")


def _as_it_goes_on(snapshot: Snapshot) -> list[Change]:
    return _but_meta(Snapshot(0, as_of_now(snapshot.records, 0)))


# check


def test_a_sound_store_is_counted(source: str, scene: Snapshot) -> None:
    result = done("check", source)
    assert f"revision {scene.revision}" in result.stdout
    assert "sound: every record is read, no rule broken" in result.stdout
    answer = json.loads(done("check", source, "--json").stdout)
    assert answer["sound"] is True
    assert answer["records"] == len(scene.records)
    assert {kind["kind"] for kind in answer["kinds"]} == {record.kind for record in scene.records}


def test_checking_changes_nothing(source: str, scene: Snapshot, postgres: Urls, etcd: Urls) -> None:
    for url in (source, postgres(), etcd()):
        if url is not source:
            put(url, scene)
        done("check", url)
        assert same(url, scene)


def test_what_is_wrong_is_named_and_the_exit_code_says_so(tmp_path: Path, scene: Snapshot) -> None:
    url = str(tmp_path / "bad")
    without = [record for record in scene.records if record.record != ("workload", "default/two")]
    put(url, Snapshot(5, [*without, Change("toaster", "t", b"1"), Change("node", "c", b"\xc1")]))
    result = typed("check", url)
    assert result.exit_code == FAILED
    for message in (
        "toaster t: this release knows no such",
        "node c: cannot be read",
        "instance default/two.0: belongs",
    ):
        assert message in result.stdout
    answer = typed("check", url, "--json")
    assert answer.exit_code == FAILED
    assert json.loads(answer.stdout)["wrong"] == 3


def test_the_leader_of_a_shared_store_is_shown(scene: Snapshot, etcd: Urls) -> None:
    url = etcd()
    put(url, scene)
    assert "Lead:     server, epoch 1, renewed 0 times" in done("check", url).stdout
    assert json.loads(done("check", url, "--json").stdout)["lead"]["identity"] == "server"


# backup and restore


def test_a_backup_brings_everything_back_into_any_store(
    tmp_path: Path, scene: Snapshot, source: str, postgres: Urls, etcd: Urls
) -> None:
    file = tmp_path / "backup"
    assert f"{len(scene.records)} records at revision {scene.revision}" in done("backup", source, str(file)).stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for url in (f"sqlite:{tmp_path / 'new'}", postgres(), etcd()):
        done("restore", str(file), url)
        found = loaded(url)
        assert _but_meta(found) == _as_it_goes_on(scene)
        assert found.revision > scene.revision + REVISIONS_UNKNOWN
        done("check", url)


def test_after_a_restore_no_serial_comes_twice(tmp_path: Path, scene: Snapshot, source: str) -> None:
    url = str(tmp_path / "new")
    done("restore", str(_backup(tmp_path, source)), url)
    old, new = (_meta(snapshot) for snapshot in (scene, loaded(url)))
    assert new.first_serial == old.first_serial, "what agents run is still known as this state's own"
    assert new.reserved > 1_700_000_000_000 * SERIALS_PER_MS > old.reserved


def _meta(snapshot: Snapshot) -> Meta:
    value = next(record.value for record in snapshot.records if record.kind == "meta")
    return msgspec.msgpack.decode(value or b"", type=Meta)


def test_restoring_over_something_needs_force_and_goes_on_after_it(
    tmp_path: Path, scene: Snapshot, source: str
) -> None:
    file = _backup(tmp_path, source)
    put(source, Snapshot(20, [Change("node", "later", b"1")]))
    assert "is not empty" in typed("restore", str(file), source).stderr
    done("restore", str(file), source, "--force")
    assert _but_meta(loaded(source)) == _as_it_goes_on(scene)


@pytest.mark.parametrize("keep", [0.2, 0.99])
def test_a_damaged_backup_is_refused_before_anything_is_written(tmp_path: Path, source: str, keep: float) -> None:
    file = _backup(tmp_path, source)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * keep)])
    before = loaded(source)
    for url, arguments in ((source, ("--force",)), (str(tmp_path / "new"), ())):
        refused = typed("restore", str(file), url, *arguments)
        assert refused.exit_code == FAILED
        assert "nothing was changed" in refused.stderr
    assert loaded(source) == before
    assert not (tmp_path / "new").exists()


def test_a_backup_that_cannot_be_written_is_reported(tmp_path: Path, source: str) -> None:
    refused = typed("backup", source, str(tmp_path / "no" / "folder"))
    assert refused.exit_code == FAILED
    assert "there is no backup" in refused.stderr


def test_passwords_are_never_shown(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "LOOK_LIMIT_S", 0.5)  # no server is there, however long we wait
    for url in ("postgresql://me:hush-4711@127.0.0.1:1/none", "etcd://me:hush-4711@127.0.0.1:1/none"):
        for arguments in (("check", url), ("copy", source, url)):
            result = typed(*arguments)
            assert result.exit_code == FAILED
            assert "hush" not in result.output
