"""Reading the state from etcd: the lead, a load as of one revision, and following what is committed."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from itertools import groupby
from typing import NamedTuple

from roost.ports.store import Behind, Change, Damaged, Lead, News, Snapshot, StoreError, unavailable
from roost.stores.collector import collector_paused
from roost.stores.etcd import txn
from roost.stores.etcd.client import WATCH_PATIENCE_S, EtcdClient
from roost.stores.etcd.errors import Compacted, TooLarge
from roost.stores.etcd.layout import (
    Changes,
    Head,
    Layout,
    PendingCommit,
    decode_head,
    decode_lead,
    end_of,
    joined,
    named,
    put_together,
)
from roost.wire import etcd_pb2 as pb

# A page takes about 10 ms to send and to decode: other tasks get their turn, and the next page is on its way meanwhile.
PAGE_BYTES = 4 << 20
PAGE_KEYS_FIRST = 1_000
PAGE_KEYS_MAX = 10_000
PIECES_FIRST = 4  # of up to 1 MiB each

# Compaction comes every few minutes and a load takes seconds: once is bad luck, five times is a mistake.
LOADS_MAX = 5


class LeadView(NamedTuple):
    at: int  # etcd's revision
    head_value: bytes | None
    head: Head
    head_created: int
    head_written: int
    lead: Lead
    lead_mark: str
    lead_written: int


async def read_lead(client: EtcdClient, layout: Layout, patience_s: float = 0.0) -> LeadView:
    request = pb.TxnRequest(success=[txn.get(layout.head), txn.get(layout.lead)])
    response = (await client.txn(request, patience_s)).response
    head, lead = txn.found(response, 0), txn.found(response, 1)
    return LeadView(
        response.header.revision,
        txn.value_of(head),
        decode_head(txn.value_of(head)),
        head.create_revision,
        head.mod_revision,
        *decode_lead(txn.value_of(lead)),
        lead.mod_revision,
    )


async def load(client: EtcdClient, layout: Layout) -> tuple[LeadView, Snapshot]:
    for _ in range(LOADS_MAX):
        seen = await read_lead(client, layout)
        try:
            return seen, Snapshot(seen.head.revision, await _records(client, layout, seen))
        except Compacted as error:  # by another client, beyond the revision that we are reading
            trouble = error
    raise unavailable(f"etcd is compacted faster than it can be read: keep some minutes of history ({trouble})")


async def _records(client: EtcdClient, layout: Layout, seen: LeadView) -> list[Change]:
    newest: Changes = {}
    if seen.head.pending is not None:
        newest = await pending_changes(client, layout, seen.head.pending, seen.at)
    records: list[Change] = []
    try:
        async for page in pages(client, layout.records, seen.at):
            with collector_paused():
                records += [layout.change(pair.key, pair.value) for pair in page]
        records += await _in_parts(client, layout, seen.at, {layout.parts_of(record) for record in newest})
    except (UnicodeDecodeError, ValueError) as error:
        raise StoreError(Damaged(f"a key below {layout.all!r} in etcd is not ours: {error}")) from error
    if not newest:
        return records
    merged = {record.record: record for record in records}
    for change in (named(record, value) for record, value in newest.items()):
        if change.value is None:
            merged.pop(change.record, None)
        else:
            merged[change.record] = change
    return list(merged.values())


async def _in_parts(client: EtcdClient, layout: Layout, at: int, pending: set[bytes]) -> list[Change]:
    """The records with large values, but for those that are being written: their parts may not all be there."""
    parts: dict[bytes, list[bytes]] = {}
    async for page in pages(client, layout.parts, at, keys=PIECES_FIRST):
        for pair in page:
            if layout.owner_of(pair.key) not in pending:
                parts.setdefault(pair.key.rpartition(b"/")[0], []).append(pair.value)
    return [named(*put_together(pieces)) for pieces in parts.values()]


async def pending_changes(
    client: EtcdClient, layout: Layout, pending: PendingCommit, at: int, patience_s: float = 0.0
) -> Changes:
    pieces: list[bytes] = []
    async for page in pages(client, layout.pieces(pending.mark), at, keys=PIECES_FIRST, patience_s=patience_s):
        pieces += [pair.value for pair in page]
    return joined(pending, pieces)


async def pages(
    client: EtcdClient,
    prefix: bytes,
    at: int,
    *,
    keys: int = PAGE_KEYS_FIRST,
    keys_only: bool = False,
    patience_s: float = 0.0,
) -> AsyncGenerator[list[pb.KeyValue], None]:
    """All keys below a prefix as of an etcd revision. The next page is asked for while the caller works on this one."""
    request = pb.RangeRequest(key=prefix, range_end=end_of(prefix), revision=at, limit=keys)
    request.keys_only = keys_only
    asked = asyncio.ensure_future(client.range(request, patience_s))
    try:
        while True:
            try:
                response = await asked
            except TooLarge:
                if request.limit == 1:
                    raise
                request.limit = max(1, request.limit // 8)
                asked = asyncio.ensure_future(client.range(request, patience_s))
                continue
            page = list(response.kvs)
            if response.more:
                size = response.ByteSize()
                request.limit = max(1, min(PAGE_KEYS_MAX, request.limit * PAGE_BYTES // max(1, size)))
                request.key = page[-1].key + b"\0"
                asked = asyncio.ensure_future(client.range(request, patience_s))
            yield page
            if not response.more:
                return
    finally:
        asked.cancel()


async def follow(client: EtcdClient, layout: Layout, revision: int) -> AsyncGenerator[News, None]:
    """See SharedStore.follow. Only etcd revisions that wrote the head or the lead are news; layout.py says why."""
    seen = await read_lead(client, layout, WATCH_PATIENCE_S)
    start = await position(client, layout, seen, revision)
    lead, lead_written, answer = seen.lead, seen.lead_written, revision
    yield News(answer, [], lead)
    watching = client.watch(layout.all, end_of(layout.all), start)
    async with contextlib.aclosing(watching):
        async for events in watching:
            changes: list[Change] = []
            before = (answer, lead)
            for etcd_revision, group in groupby(events, lambda event: event.kv.mod_revision):
                together = {event.kv.key: event for event in group}
                text = together.get(layout.lead)
                if text is not None and etcd_revision > lead_written:  # catching up, the newest is known already
                    lead, lead_written = decode_lead(_value(text))[0], etcd_revision
                text = together.get(layout.head)
                if text is None:
                    continue
                head = _next_head(text, answer)
                if head.revision == answer:
                    continue
                answer = head.revision
                if head.pending is not None:
                    pending = await pending_changes(client, layout, head.pending, etcd_revision, WATCH_PATIENCE_S)
                    changes += [named(name, value) for name, value in pending.items()]
                else:
                    records = [item for item in together.items() if item[0].startswith(layout.records)]
                    changes += [layout.change(key, _value(event)) for key, event in records]
            if (answer, lead) != before:
                yield News(answer, changes, lead)


async def position(client: EtcdClient, layout: Layout, seen: LeadView, revision: int) -> int:
    """The etcd revision to watch from, so that everything after a revision of ours is seen."""
    if revision > seen.head.revision or revision < 0:
        raise StoreError(Behind(f"revision {revision} is not known here; {seen.head.revision} is the newest"))
    if revision == seen.head.revision:
        return seen.at + 1
    # The head grows with time: search for the last etcd revision at which it was not beyond what is asked for.
    before, after = seen.head_created - 1, seen.head_written
    compacted = False
    while after - before > 1:
        middle = (before + after) // 2
        try:
            response = await client.range(pb.RangeRequest(key=layout.head, revision=middle), WATCH_PATIENCE_S)
        except Compacted:
            before, compacted = middle, True
            continue
        pair = next(iter(response.kvs), pb.KeyValue())
        if decode_head(txn.value_of(pair)).revision <= revision:
            before, compacted = middle, False
        else:
            after = pair.mod_revision
    if compacted:
        raise StoreError(Behind(f"revision {revision} is no longer available: etcd is compacted beyond it"))
    return before + 1


def _next_head(event: pb.Event, report: int) -> Head:
    if event.type == pb.Event.DELETE:
        raise StoreError(Behind("the store was deleted from etcd"))
    head = decode_head(event.kv.value)
    if head.since > report or head.revision < report:
        raise StoreError(Behind(f"revision {head.revision} follows {head.since}, and {report} was sent last"))
    return head


def _value(event: pb.Event) -> bytes | None:
    return None if event.type == pb.Event.DELETE else event.kv.value
