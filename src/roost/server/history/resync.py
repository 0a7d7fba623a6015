"""Whole states for the history: the living one, scanned while it changes; where the file ends; a state in pieces."""

from collections.abc import Iterator
from typing import Any

import apsw
import msgspec

from roost.core.state.state import State
from roost.server.history.as_of import KINDS
from roost.server.history.database import first_row
from roost.server.history.projection import HistoryCommit
from roost.server.history.queue import Mark

PIECE_BYTES = 1 << 19  # of a snapshot: small enough to be packed and read without holding up the engine


class Stretch:
    """Where the file is: its last stretch, and how far that goes."""

    def __init__(self, id: int, life: int, revision: int, at_ms: int) -> None:
        self.id, self.life, self.revision, self.at_ms = id, life, revision, at_ms
        self.changes = self.bytes = 0  # since the last snapshot
        self.records = self.size = 0  # of it


class Scan:
    """A whole state under way: what was scanned, and the commits since."""

    def __init__(self, number: int, records: dict[str, dict[str, bytes]], reason: str) -> None:
        self.number, self.records, self.reason = number, records, reason
        self.commits: list[HistoryCommit] = []

    def until(self, mark: Mark) -> list[HistoryCommit]:
        """The commits up to a mark, without a hole: whatever is before one is in the records already."""
        wanted, found = mark.number, list[HistoryCommit]()
        for commit in reversed(self.commits):
            if commit.number != wanted:
                break
            found.append(commit)
            wanted -= 1
        return found[::-1]


def last_stretch(database: apsw.Connection) -> Stretch | None:
    """Where a file ends."""
    found = first_row(database.execute("SELECT id, life, revision, at_ms FROM stretches ORDER BY id DESC LIMIT 1"))
    if found is None:
        return None
    stretch = Stretch(*found)
    query = "SELECT revision, at_ms FROM batches WHERE stretch = ? ORDER BY first_revision DESC LIMIT 1"
    last = first_row(database.execute(query, (stretch.id,)))
    if last is not None:
        stretch.revision, stretch.at_ms = last
    query = "SELECT id, records, batch FROM snapshots WHERE stretch = ? ORDER BY id DESC LIMIT 1"
    snapshot, stretch.records, batch = first_row(database.execute(query, (stretch.id,))) or (0, 0, 0)
    query = "SELECT coalesce(sum(length(packed)), 0) FROM pieces WHERE snapshot = ?"
    (stretch.size,) = first_row(database.execute(query, (snapshot,))) or (0,)
    query = "SELECT coalesce(sum(changes), 0), coalesce(sum(length(packed)), 0) FROM batches WHERE id > ?"
    stretch.changes, stretch.bytes = first_row(database.execute(query, (batch,))) or (0, 0)
    return stretch


def scan(state: State) -> dict[str, dict[str, bytes]]:
    """All records of a state that may be changing: dicts are copied and records encoded in one step each."""
    found: dict[str, dict[str, bytes]] = {"meta": {"meta": _ENCODER.encode(state.meta)}}
    for kind, name in KINDS.items():
        things: dict[str, Any] = getattr(state, name).copy()
        found[kind] = {key: _ENCODER.encode(thing) for key, thing in things.items()}
    for kind, opaque_record in state.opaque_records.copy().items():
        found[kind] = opaque_record.copy()
    return found


def pieces_of(records: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """A whole state, part by part."""
    for kind, things in records.items():
        piece: dict[str, bytes] = {}
        size = 0
        for key, value in things.items():
            piece[key] = value
            size += len(key) + len(value)
            if size >= PIECE_BYTES:
                yield kind, piece
                piece, size = {}, 0
        if piece:
            yield kind, piece


_ENCODER = msgspec.msgpack.Encoder()
