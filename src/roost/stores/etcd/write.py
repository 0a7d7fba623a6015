"""Writing the state to etcd: taking and renewing the lead, commits small and large, and compaction. See layout.py."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from roost.ports import store as port
from roost.stores.etcd import read, txn
from roost.stores.etcd.client import EtcdClient
from roost.stores.etcd.errors import NoAnswer
from roost.stores.etcd.layout import (
    PIECE_BYTES,
    Changes,
    Head,
    Layout,
    cut,
    decode_head,
    decode_lead,
    encode_lead,
    end_of,
    parts,
)
from roost.stores.group_commit import Outcome, Weight, committed, fenced, in_doubt, lead_changed, load_first
from roost.wire import etcd_pb2 as pb

# Of etcd's default of 1.5 MiB a request: room for a piece and its key, and for what each operation adds.
REQUEST_BYTES_MAX = PIECE_BYTES + (256 << 10)
OPERATION_BYTES = 48  # what an operation adds to its key and value, with the prefix

# Transactions of one large commit that are under way together: they share etcd's fsyncs, and more of them gain little.
TOGETHER = 4

# Another try is needed only if another server wrote in between, and each of them succeeded.
TRIES_MAX = 20

ONE_ROUND_S = 0.001  # of patience: every member is asked once

# History is dropped after so many bytes or so much time, up to where the last such moment was: one to two intervals are
# kept. 64 MiB are 100,000 records of 600 bytes, and twice that is a sixteenth of etcd's default quota.
COMPACT_BYTES = 64 << 20
COMPACT_S = 300.0


class EtcdWriter:
    """One call at a time. It remembers the head, so that a commit is one round trip."""

    def __init__(self, client: EtcdClient, layout: Layout, operations: int, compact: bool) -> None:
        self._client, self._layout = client, layout
        self._operations, self._compact = operations, compact
        self.transaction_max = Weight(operations - 1, REQUEST_BYTES_MAX)  # one operation is that of the head
        self._head, self._known = Head(), False
        self._head_value: bytes | None = None
        self._lead, self._lead_mark, self._lead_value = port.Lead(), "", b""
        self._staged: Changes | None = None  # the pending changes, if this writer published them
        self._unspread = False  # the last job was a large commit
        self._parted: dict[bytes, list[bytes]] = {}  # the keys of the parts, by `Layout.parts_of`
        self._prepared_for = 0  # the epoch whose first commit found everything tidy
        self._failure: Exception | None = None  # no commit until the caller has loaded what is really there
        self._etcd_revision = self._checkpoint = self._written = 0
        self._checkpoint_at = 0.0

    async def lead(self, identity: str, seen: port.Lead | None) -> port.LeadTaken | port.Fenced:
        mark, layout = secrets.token_hex(6), self._layout
        # A standby that waited for etcd in here would take the lead at its return, before the leader can renew it.
        patience_s = 0.0 if seen is None else ONE_ROUND_S
        for _ in range(TRIES_MAX):
            now = await read.read_lead(self._client, layout, patience_s)
            if now.lead_mark == mark:  # the answer was lost, not the lead
                return self._leads(now.lead, mark, now.head_value, now.head)
            if seen is not None and seen != now.lead:
                return lead_changed(now.lead)
            lead = port.Lead(now.lead.epoch + 1, identity)
            # A lead that was seen must not even have been renewed since; otherwise only the epoch counts.
            epoch = b"%d" % now.lead.epoch if now.lead_written else None
            same = txn.equals(layout.epoch, epoch) if seen is None else txn.untouched(layout.lead, now.lead_written)
            taking = [txn.put(layout.epoch, b"%d" % lead.epoch), txn.put(layout.lead, encode_lead(lead, mark))]
            request = pb.TxnRequest(compare=[same], success=[*taking, txn.get(layout.head)])
            response = (await self._client.txn(request, patience_s)).response
            if response.succeeded:
                value = txn.value_of(txn.found(response, 2))
                return self._leads(lead, mark, value, decode_head(value))
        raise port.unavailable(f"others took the lead {TRIES_MAX} times while we tried")

    async def renew(self, epoch: int, successor: str) -> port.LeadRenewed | port.Fenced:
        layout = self._layout
        for _ in range(TRIES_MAX):
            if self._lead.epoch != epoch or not self._lead_value:
                now = await read.read_lead(self._client, layout)
                self._knows(now.lead, now.lead_mark)
                if epoch != now.lead.epoch or epoch < 1:
                    return fenced(epoch, now.lead)
            lead = self._lead._replace(renewals=self._lead.renewals + 1, successor=successor)
            value = encode_lead(lead, self._lead_mark)
            request = pb.TxnRequest(
                compare=[txn.equals(layout.lead, self._lead_value)],
                success=[txn.put(layout.lead, value)],
                failure=[txn.get(layout.lead)],
            )
            response = (await self._client.txn(request)).response
            if response.succeeded or txn.value_of(txn.found(response, 0)) == value:
                self._knows(lead, self._lead_mark)
                self._count(response, len(value))
                return port.LeadRenewed()
            self._lead_value = b""  # not what we knew: look
        raise port.unavailable(f"the lead changed {TRIES_MAX} times while we renewed it")

    async def load(self) -> port.Snapshot:
        seen, snapshot = await read.load(self._client, self._layout)
        self._head, self._head_value, self._known = seen.head, seen.head_value, True
        self._staged, self._prepared_for, self._failure = None, 0, None
        return snapshot

    def weigh(self, changes: Changes) -> Weight:
        """What it takes of a request, roughly and not less."""
        size = sum(len(record) + len(value or b"") + OPERATION_BYTES for record, value in changes.items())
        return Weight(len(changes), size)

    async def perform(self, work: Callable[[], Awaitable[object]]) -> object:
        try:
            return await work()
        except Exception as error:
            return error

    async def commit(self, epoch: int, group: Sequence[Changes]) -> Sequence[Outcome]:
        if self._failure is not None:
            return [load_first(self._failure)] * len(group)
        if epoch < 1:
            return [port.Fenced(f"epoch {epoch} may not commit: it is not the current epoch")] * len(group)
        try:
            await self._prepare(epoch)
            merged = {record: value for changes in group for record, value in changes.items()}
            since = self._head.revision
            head = Head(since + len(group), since, epoch, secrets.token_hex(6))
            in_parts = self._parted and any(self._layout.parts_of(record) in self._parted for record in merged)
            if self._fits(merged) and not in_parts:
                await self._transact(epoch, self._operations_of(merged, head.mark), head)
            else:
                await self._commit_large(epoch, merged, head)
        except Exception as error:
            self._prepared_for = 0
            if isinstance(error, port.StoreError) and isinstance(error.failure, port.Fenced):
                return [error.failure] * len(group)
            self._failure = error
            return [in_doubt(error) if isinstance(error, NoAnswer) else error] * len(group)
        return committed(since + 1, len(group))

    async def raise_revision(self, epoch: int, revision: int) -> None:
        await self._prepare(epoch)
        # `since` says that nothing is known in between: followers load again.
        await self._transact(epoch, [], Head(revision, revision, epoch, secrets.token_hex(6)))

    def _fits(self, changes: Changes) -> bool:
        """Whether they are one small transaction, with the head."""
        weight = self.weigh(changes)
        is_small = weight.changes <= self.transaction_max.changes and weight.bytes <= self.transaction_max.bytes
        return is_small and not any(map(_is_large, changes.values()))

    async def tidy(self) -> None:
        """Spread a large commit, and compact if that is due."""
        try:
            if self._unspread:
                self._unspread = False
                await self._spread(self._head.epoch)
        except port.StoreError:
            self._prepared_for = 0  # the next commit does it, or says why not
        except Exception as error:
            self._failure = error
        await self._compact_if_due()

    async def _compact_if_due(self) -> None:
        """Drop old history now and then. What fails here is done the next time."""
        now = asyncio.get_running_loop().time()
        if not self._checkpoint:
            self._checkpoint, self._checkpoint_at, self._written = self._etcd_revision, now, 0
        due = self._written >= COMPACT_BYTES or (self._written and now - self._checkpoint_at >= COMPACT_S)
        if not (self._compact and due):
            return
        before = self._checkpoint
        self._checkpoint, self._checkpoint_at, self._written = self._etcd_revision, now, 0
        with contextlib.suppress(port.StoreError):
            await self._client.compact(before)

    async def _commit_large(self, epoch: int, changes: Changes, head: Head) -> None:
        pending, pieces = cut(changes, head.mark)
        keys = [self._layout.piece(head.mark, number) for number in range(len(pieces))]
        writes = [[txn.put(key, piece)] for key, piece in zip(keys, pieces, strict=True)]
        await _in_turns([self._transact(epoch, operations) for operations in writes])
        published = Head(head.revision, head.since, epoch, head.mark, pending)
        await self._transact(epoch, [], published, also=txn.there(keys[0]))
        self._staged, self._unspread = changes, True

    async def _prepare(self, epoch: int) -> None:
        """Finish or sweep what the writer before us left; know which records are in parts."""
        if not self._known:
            now = await read.read_lead(self._client, self._layout)
            self._head, self._head_value, self._known = now.head, now.head_value, True
        if self._prepared_for != epoch:
            self._parted = {}
            async for page in read.pages(self._client, self._layout.parts, 0, keys_only=True):
                for pair in page:
                    self._parted.setdefault(self._layout.owner_of(pair.key), []).append(pair.key)
            if self._head.pending is None:
                await self._transact(epoch, [txn.delete(self._layout.stage, end_of(self._layout.stage))])
        if self._head.pending is not None:
            await self._spread(epoch)
        self._prepared_for = epoch

    async def _spread(self, epoch: int) -> None:
        """Write the records of the large commit that is pending, then say that it is not."""
        head = self._head
        assert head.pending is not None
        changes = self._staged
        if changes is None:
            changes = await read.pending_changes(self._client, self._layout, head.pending, 0)
        batches = _batches(self._operations_of(changes, head.mark), self._operations)
        await _in_turns([self._transact(epoch, batch) for batch in batches])
        finished = Head(head.revision, head.revision, epoch, secrets.token_hex(6))
        await self._transact(epoch, [txn.delete(self._layout.stage, end_of(self._layout.stage))], finished)
        self._staged = None
        for record, value in changes.items():
            self._parted.pop(self._layout.parts_of(record), None)
            if _is_large(value):
                keys = [key for key, _ in self._parts(record, value, head.mark)]
                self._parted[self._layout.parts_of(record)] = keys

    def _operations_of(self, changes: Changes, mark: str) -> list[pb.RequestOp]:
        operations = []
        for record, value in changes.items():
            key = self._layout.records + record
            if value is None or _is_large(value):
                operations.append(txn.delete(key))
            else:
                operations.append(txn.put(key, value))
            if _is_large(value):
                operations += [txn.put(*part) for part in self._parts(record, value, mark)]
            if self._parted:
                new = self._layout.parts_of(record) + b"/" + mark.encode()
                old = self._parted.get(self._layout.parts_of(record), ())
                operations += [txn.delete(part) for part in old if not part.startswith(new)]
        return operations

    def _parts(self, record: bytes, value: bytes | None, mark: str) -> list[tuple[bytes, bytes]]:
        assert value is not None
        prefix = self._layout.parts_of(record) + b"/" + mark.encode()
        return [(prefix + b"/%06d" % number, part) for number, part in enumerate(parts(record, value))]

    async def _transact(
        self, epoch: int, operations: list[pb.RequestOp], head: Head | None = None, also: pb.Compare | None = None
    ) -> None:
        """One transaction, if the epoch leads and the head is what we know; with `head` it writes a new one."""
        layout = self._layout
        compare = [txn.equals(layout.epoch, b"%d" % epoch), txn.equals(layout.head, self._head_value)]
        request = pb.TxnRequest(
            compare=compare, success=operations, failure=[txn.get(layout.lead), txn.get(layout.head)]
        )
        value = None if head is None else msgspec.json.encode(head)
        if value is not None:
            request.success.append(txn.put(layout.head, value))
        if also is not None:
            request.compare.append(also)
        answer = await self._client.txn(request)
        if not answer.response.succeeded:
            self._explain(epoch, answer.response, value, answer.repeated)
        self._count(answer.response, request.ByteSize())
        if head is not None:
            self._head, self._head_value = head, value

    def _explain(self, epoch: int, response: pb.TxnResponse, wrote: bytes | None, repeated: bool) -> None:
        """Return if it was written all the same, by an earlier try; otherwise raise why it was not."""
        lead = decode_lead(txn.value_of(txn.found(response, 0)))[0]
        found = txn.value_of(txn.found(response, 1))
        if wrote is not None and found == wrote:
            return
        if lead.epoch != epoch and repeated and wrote is not None:
            raise port.StoreError(
                port.InDoubt(f"the answer was lost; {lead.identity} leads by now with epoch {lead.epoch}")
            )
        if lead.epoch != epoch:
            raise port.StoreError(fenced(epoch, lead))
        raise port.StoreError(
            port.WriteConflict(
                "etcd holds a commit that this server did not know of: an earlier one came late; load first"
            )
        )

    def _leads(self, lead: port.Lead, mark: str, head_value: bytes | None, head: Head) -> port.LeadTaken:
        self._knows(lead, mark)
        self._head, self._head_value, self._known, self._staged = head, head_value, True, None
        return port.LeadTaken(lead.epoch)

    def _knows(self, lead: port.Lead, mark: str) -> None:
        self._lead, self._lead_mark, self._lead_value = lead, mark, encode_lead(lead, mark)

    def _count(self, response: pb.TxnResponse, size: int) -> None:
        self._etcd_revision = max(self._etcd_revision, response.header.revision)
        self._written += size


def _is_large(value: bytes | None) -> bool:
    return value is not None and len(value) > PIECE_BYTES


def _batches(operations: list[pb.RequestOp], operations_max: int) -> list[list[pb.RequestOp]]:
    batches: list[list[pb.RequestOp]] = []
    room = 0
    for operation in operations:
        size = operation.ByteSize() + OPERATION_BYTES
        if not batches or len(batches[-1]) >= operations_max or room < size:
            batches.append([])
            room = REQUEST_BYTES_MAX
        batches[-1].append(operation)
        room -= size
    return batches


async def _in_turns(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """A few at a time. When one fails, those under way end and the rest are not begun."""
    for start in range(0, len(works), TOGETHER):
        outcomes = await asyncio.gather(*works[start : start + TOGETHER], return_exceptions=True)
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failed:
            for work in works[start + TOGETHER :]:
                work.close()
            raise failed[0]
