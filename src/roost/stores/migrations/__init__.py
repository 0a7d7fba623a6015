"""Numbered SQL files, one folder per store: NNNN_what.sql takes a database from version NNNN - 1 to NNNN."""

import importlib.resources
from typing import NamedTuple


class Migration(NamedTuple):
    """One step up. The file holds statements only: the caller opens and ends the transaction."""

    version: int
    name: str
    sql: str


def numbered(store: str) -> list[Migration]:
    """All migrations of a store, in order. Their numbers are 1, 2, 3, ... without a gap."""
    folder = importlib.resources.files(__package__) / store
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    migrations = [Migration(int(file.name[:4]), file.name, file.read_text(encoding="utf-8")) for file in files]
    assert [migration.version for migration in migrations] == list(range(1, len(files) + 1)), "a migration is missing"
    return migrations
