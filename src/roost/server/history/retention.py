"""Retention of the history: what is too old or too much is deleted from the oldest end, a little at a time."""

from collections.abc import Mapping
from typing import Any, Literal

import apsw

from roost.server.history.database import transaction, used_bytes

ROWS_MAX = 2_000  # deleted at a time: some ten milliseconds
BLOBS_MAX = 50  # of half a megabyte each
SERIALS_MAX = 100  # checked for leftovers at a time
FREE_SHARE = 4  # a quarter of the file is kept free for new rows; more is returned to the system

Verdict = Literal["done", "more", "snapshot", "full"]


class HistoryRetention:
    def __init__(self) -> None:
        self._looked_at = -1

    def make(self, database: apsw.Connection, cutoff_ms: int, bytes_max: int, live: Mapping[str, int]) -> Verdict:
        """Delete what is older than the cutoff; if there is too much, everything before the second oldest snapshot.

        `more`: call again. `snapshot`: only a new one lets anything go. `full`: the newest snapshot alone is too much.
        """
        verdict: Verdict = "done"
        if used_bytes(database) > bytes_max:
            floor_ms = size_floor_ms(database)
            if floor_ms is None:
                verdict = "snapshot" if database.execute("SELECT 1 FROM batches LIMIT 1").get else "full"
            else:
                cutoff_ms = max(cutoff_ms, floor_ms)
        gone = _forget_states(database, cutoff_ms) + _forget_rows(database, cutoff_ms)
        gone += self._forget_leftovers(database, live)
        _return_pages(database)
        return "more" if gone else verdict

    def make_shared(self, database: apsw.Connection, floor_ms: int) -> None:
        """Delete what every server deletes: all before the floor of a shared history."""
        while _forget_states(database, floor_ms) + _forget_rows(database, floor_ms):
            _return_pages(database)

    def _forget_leftovers(self, database: apsw.Connection, live: Mapping[str, int]) -> int:
        """Instances whose workload is neither in the state nor in the history: it ended in a gap."""
        before = database.total_changes()
        living: set[int] | None = None
        with transaction(database):
            for _ in range(SERIALS_MAX):
                query = "SELECT min(serial) FROM instances WHERE serial > ?"
                found = database.execute(query, (self._looked_at,)).get
                if found is None:
                    self._looked_at = -1
                    break
                if database.execute("SELECT 1 FROM workloads WHERE serial = ?", (found,)).get is None:
                    living = set(live.values()) if living is None else living
                    if found not in living and _forget_instances(database, found, ROWS_MAX) == ROWS_MAX:
                        break
                self._looked_at = found
        return database.total_changes() - before


def _return_pages(database: apsw.Connection) -> None:
    if database.execute("PRAGMA freelist_count").get * FREE_SHARE > database.execute("PRAGMA page_count").get:
        database.execute(f"PRAGMA incremental_vacuum({ROWS_MAX})").fetchall()


def size_floor_ms(database: apsw.Connection) -> int | None:
    """Where a history that is too large is to begin: at a snapshot, so that everything after it can be shown."""
    times: list[int] = [row[0] for row in database.execute("SELECT at_ms FROM snapshots ORDER BY id LIMIT 2")]
    if not times:
        return None
    older = "SELECT 1 FROM events WHERE at_ms < ?1 UNION ALL SELECT 1 FROM workloads WHERE finished_ms < ?1 LIMIT 1"
    if database.execute(older, (times[0],)).get is not None:
        return times[0]
    return times[1] if len(times) > 1 else None


def _forget_states(database: apsw.Connection, cutoff_ms: int) -> int:
    """Snapshots before the last one that is old enough, and the commits that it covers. A snapshot's own row is
    deleted first: a half deleted snapshot is not shown."""
    query = "SELECT id, batch FROM snapshots WHERE at_ms <= ? ORDER BY at_ms DESC, id DESC LIMIT 1"
    stored = database.execute(query, (cutoff_ms,)).get
    if stored is None:
        return 0
    snapshot, batch = stored
    before = database.total_changes()
    with transaction(database):
        database.execute("DELETE FROM snapshots WHERE id < ?", (snapshot,))
        for table, column, last in (("pieces", "snapshot", snapshot - 1), ("batches", "id", batch)):
            old = f"SELECT id FROM {table} WHERE {column} <= ? ORDER BY {column} LIMIT {BLOBS_MAX}"
            database.execute(f"DELETE FROM {table} WHERE id IN ({old})", (last,))
        database.execute("DELETE FROM stretches WHERE id < (SELECT stretch FROM snapshots WHERE id = ?)", (snapshot,))
    return database.total_changes() - before


def _forget_rows(database: apsw.Connection, cutoff_ms: int) -> int:
    before = database.total_changes()
    with transaction(database):
        for table in ("events", "audits"):
            old = f"SELECT id FROM {table} WHERE at_ms < ? ORDER BY at_ms LIMIT {ROWS_MAX}"
            database.execute(f"DELETE FROM {table} WHERE id IN ({old})", (cutoff_ms,))
        query = f"SELECT serial FROM workloads WHERE finished_ms < ? ORDER BY finished_ms LIMIT {ROWS_MAX}"
        left = ROWS_MAX
        old_ones: list[Any] = database.execute(query, (cutoff_ms,)).fetchall()
        for (serial,) in old_ones:
            left -= _forget_instances(database, serial, left)
            if left <= 0:
                break
            database.execute("DELETE FROM workloads WHERE serial = ?", (serial,))
            left -= 1
    return database.total_changes() - before


def _forget_instances(database: apsw.Connection, serial: int, most: int) -> int:
    before = database.total_changes()
    old = f"SELECT number FROM instances WHERE serial = ?1 ORDER BY number LIMIT {max(0, most)}"
    database.execute(f"DELETE FROM instances WHERE serial = ?1 AND number IN ({old})", (serial,))
    return database.total_changes() - before
