"""Durable changes on PostgreSQL: the store's commits, against plain asyncpg writing the same batches to one table."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import asyncpg  # type: ignore[import-untyped]

from roost.ports.store import Change, require
from roost.stores.postgres.store import PostgresStore
from roost_lab.bench.figure import Figure, figure
from roost_lab.components import postgres

URL = "ROOST_BENCH_POSTGRES"  # the server to measure; without it a private one is started
SCHEMA = "roost_bench"
PLAIN = "roost_bench_plain"

KEYS = 20_000
VALUE_BYTES = 600  # an instance with a story
BATCH = 64
COMMIT_RECORDS = 5_000  # some megabytes, which a loaded machine also writes within the time limit of a commit

UPSERT = f"""INSERT INTO {PLAIN} SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[])
    ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value"""


TINY = {"rounds": 1, "batches_per_round": 2, "records": KEYS}


def measure(rounds: int = 5, batches_per_round: int = 60, records: int = 100_000) -> list[Figure]:
    """The store and plain asyncpg take turns in rounds, so that the rest of the machine's load meets both."""
    with postgres_server() as url:
        ours, plain, load_s = asyncio.run(_measure(url, rounds, batches_per_round, records))
    return [
        figure("postgres_changes_per_s", ours, "1/s", better="higher", batch=BATCH, bytes=VALUE_BYTES),
        figure("postgres_plain_changes_per_s", plain, "1/s", better="higher", batch=BATCH, bytes=VALUE_BYTES),
        figure("postgres_changes_ratio", ours / plain, "of asyncpg", better="higher", bound=0.30, goal=0.50),
        figure("postgres_load_s", load_s, "s", goal=1.0, records=records, bytes=VALUE_BYTES),
    ]


async def _measure(url: str, rounds: int, batches_per_round: int, records: int) -> tuple[float, float, float]:
    chance = random.Random(1)
    async with clean(url) as connection:
        store = PostgresStore(url, SCHEMA)
        epoch = require(await store.lead("bench")).epoch
        ours_s = plain_s = 0.0
        changes = 0
        await connection.execute(f"CREATE TABLE {PLAIN} (kind bytea, key bytea, value bytea, PRIMARY KEY (kind, key))")
        for _ in range(rounds):
            drawn = [chance.sample(range(KEYS), BATCH) for _ in range(batches_per_round)]
            batches = [[_change(number, chance) for number in numbers] for numbers in drawn]
            changes += sum(map(len, batches))
            began = time.perf_counter()
            for batch in batches:
                require(await store.commit(epoch, batch))
            between = time.perf_counter()
            for batch in batches:
                columns = [change.kind.encode() for change in batch], [change.key.encode() for change in batch]
                await connection.execute(UPSERT, *columns, [change.value for change in batch])
            ours_s += between - began
            plain_s += time.perf_counter() - between
        await commit_all(store, epoch, [_change(number, chance) for number in range(records)])
        began = time.perf_counter()
        assert len(require(await store.load()).records) == records
        load_s = time.perf_counter() - began
        await store.close()
    return changes / ours_s, changes / plain_s, load_s


async def commit_all(store: PostgresStore, epoch: int, records: Sequence[Change]) -> None:
    for start in range(0, len(records), COMMIT_RECORDS):
        require(await store.commit(epoch, records[start : start + COMMIT_RECORDS]))


def _change(number: int, chance: random.Random) -> Change:
    return Change("instance", f"default/bench/{number}", chance.randbytes(VALUE_BYTES))


@contextlib.asynccontextmanager
async def clean(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection; the tables of earlier runs and of this one are dropped."""
    connection = await asyncpg.connect(url)
    wipe = f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; DROP TABLE IF EXISTS {PLAIN}"
    try:
        await connection.execute(wipe)
        yield connection
        await connection.execute(wipe)
    finally:
        await connection.close()


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of the server to measure; a private one with its own settings, fsync included, if none is named."""
    if url := os.environ.get(URL):
        yield url
        return
    with postgres.running(settings=()) as server:
        yield server.dsn
