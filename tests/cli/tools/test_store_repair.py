"""roost store repair: a data directory that lost acknowledged commits goes on only when the loss is accepted."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roost.cli import root
from roost.cli.common.exit_codes import DONE, FAILED
from roost.ports.store import Change, Snapshot, require
from roost.server.maintenance.backup import REVISIONS_UNKNOWN
from roost.stores.sqlite.store import SqliteStore


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["store", *arguments], catch_exceptions=False)


async def written(directory: Path, commits: int) -> Snapshot:
    store = SqliteStore(directory)
    epoch = require(await store.lead("server-1")).epoch
    for number in range(commits):
        require(await store.commit(epoch, [Change("kind", str(number), b"x")]))
    found = require(await store.load())
    await store.close()
    return found


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A directory with an older copy of its database."""
    home = tmp_path / "home"
    asyncio.run(written(home, 2))
    older = (home / "roost.db").read_bytes()
    asyncio.run(written(home, 3))
    (home / "roost.db").write_bytes(older)
    return home


def test_what_is_missing_is_shown_and_nothing_changes(damaged: Path) -> None:
    before = {path.name: path.read_bytes() for path in damaged.iterdir()}
    for arguments in (("repair", str(damaged)), ("check", str(damaged)), ("backup", str(damaged), f"{damaged}.bak")):
        result = typed(*arguments)
        assert result.exit_code == FAILED
        assert "3 acknowledged commits are missing" in result.stderr
    assert "--accept-loss" in typed("repair", str(damaged)).stderr
    after = {path.name: path.read_bytes() for path in damaged.iterdir()}
    after.pop("roost.db-wal")  # empty
    assert {**before, "roost.lock": b""} == {**after, "roost.lock": b""}


def test_an_accepted_loss_goes_on_at_a_revision_that_was_never_seen(damaged: Path) -> None:
    result = typed("repair", str(damaged), "--accept-loss")
    assert result.exit_code == DONE, result.stderr
    assert "goes on with 2 records" in result.stderr
    found = asyncio.run(written(damaged, 0))
    assert len(found.records) == 2 and found.revision > REVISIONS_UNKNOWN
    assert "nothing to repair" in typed("repair", str(damaged)).stderr


def test_a_missing_database_is_accepted_as_an_empty_store(damaged: Path) -> None:
    (damaged / "roost.db").unlink()
    assert "its database is gone" in typed("check", str(damaged)).stderr
    assert "its database is gone" in typed("repair", str(damaged)).stderr
    assert typed("repair", str(damaged), "--accept-loss").exit_code == DONE
    found = asyncio.run(written(damaged, 0))
    assert found.records == [] and found.revision > REVISIONS_UNKNOWN


def test_a_sound_directory_is_left_alone(tmp_path: Path) -> None:
    found = asyncio.run(written(tmp_path, 2))
    result = typed("repair", str(tmp_path), "--accept-loss")
    assert result.exit_code == DONE and "nothing to repair" in result.stderr
    assert asyncio.run(written(tmp_path, 0)) == found


def test_a_directory_in_use_is_left_alone(damaged: Path) -> None:
    async def led() -> Result:
        (damaged / "roost.mark").unlink()
        store = SqliteStore(damaged)
        require(await store.lead("busy"))
        result = await asyncio.to_thread(typed, "repair", str(damaged), "--accept-loss")
        await store.close()
        return result

    result = asyncio.run(led())
    assert result.exit_code == FAILED and "is in use by" in result.stderr
