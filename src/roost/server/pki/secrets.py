"""Secrets of projects: sealed where they are stored, opened only when an order is written to the node that needs them.

Neither the core nor a store ever sees a value: they see the name that a document refers to, and a sealed record.
"""

from collections.abc import Awaitable, Callable, Container, Iterator
from functools import partial
from typing import Any

import msgspec

from roost.model.errors import Conflict, Invalid, TooMuch
from roost.model.events import Event, PutRecords
from roost.model.limits import SECRET_BYTES_MAX, SECRETS_BYTES_MAX
from roost.model.protocol import Answer, Order, Run, Welcome
from roost.model.records.opaque import OpaqueRecord
from roost.model.records.secret import Handed
from roost.model.spec.document import decode_document, may_have_secrets, secrets_of
from roost.model.spec.names import check_name
from roost.schema.secrets import Resealed, SecretView
from roost.server.engine.engine import Engine
from roost.server.pki.encryption import Seal, Unsealable

KIND = "secret"
BATCH_BYTES_MAX = 512 << 10  # of records that are sealed again in one commit: stores take 1.5 MiB at least
BATCH_MAX = 100
PASSES_MAX = 3  # over records that other requests change meanwhile

Ask = Callable[[Callable[[int], Event]], Awaitable[Any]]
Due = Welcome | Answer


class StoredSecret(msgspec.Struct, frozen=True):
    sealed: bytes
    size: int
    changed_ms: int
    changed_by: str


class Secrets:
    """Seals new secrets and opens those that a run needs."""

    seal: Seal  # set before the first request

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record(self, key: str, value: bytes, by: str) -> OpaqueRecord:
        """A secret (PROJECT/NAME) as it is to be stored. Raises Invalid, TooMuch."""
        check_key(key)
        if not value:
            raise Invalid("value", "a secret has at least one byte")
        if b"\0" in value:
            raise Invalid("value", "a secret goes into a process's environment, which cannot hold a NUL byte")
        if len(value) > SECRET_BYTES_MAX:
            raise TooMuch(f"a secret may have {SECRET_BYTES_MAX:,} bytes; this one has {len(value):,}", path="value")
        sealed = self.seal.seal(_bound(key), value)
        return OpaqueRecord(KIND, key, _encode(StoredSecret(sealed, len(value), self._engine.clock.now_ms(), by)))

    def view(self, key: str, record: bytes) -> SecretView:
        project, _, name = key.partition("/")
        stored = _decode(record)
        return SecretView(
            project=project, name=name, size=stored.size, changed_ms=stored.changed_ms, changed_by=stored.changed_by,
            readable=isinstance(self._open(key, record), bytes), newest_key=self.seal.is_newest(stored.sealed),
        )  # fmt: skip

    def hand_over(self, frame: Due, allocated: Container[int] = ()) -> Due:
        """Orders for an agent, with the secrets of their runs; not of runs that it has already."""
        if not any(isinstance(order, Run) and may_have_secrets(order.document) for order in frame.orders):
            return frame
        opened: dict[str, bytes | str] = {}  # an array of a thousand runs opens a secret once
        orders = tuple([self._with_secrets(order, allocated, opened) for order in frame.orders])
        return msgspec.structs.replace(frame, orders=orders)

    async def reseal(self, ask: Ask) -> Resealed:
        return await reseal(self._engine, ask, KIND, self._resealed)

    def _with_secrets(self, order: Order, allocated: Container[int], opened: dict[str, bytes | str]) -> Order:
        if not isinstance(order, Run) or order.token in allocated or not may_have_secrets(order.document):
            return order
        names = sorted({*secrets_of(decode_document(order.document)).values()})
        if not names:
            return order
        project, records = order.workload.partition("/")[0], self._engine.state.opaque_records.get(KIND, {})
        values: dict[str, bytes] = {}
        for name in names:
            key = f"{project}/{name}"
            value = opened.get(key)
            if value is None:
                value = opened[key] = self._open(key, records.get(key))
            if isinstance(value, str):
                return msgspec.structs.replace(order, secrets=Handed({}, f"secret {name} cannot be opened: {value}"))
            values[name] = value
        size = sum(map(len, values.values()))
        if size > SECRETS_BYTES_MAX:
            message = f"its secrets have {size:,} bytes together; {SECRETS_BYTES_MAX:,} are allowed"
            return msgspec.structs.replace(order, secrets=Handed({}, message))
        return msgspec.structs.replace(order, secrets=Handed(values))

    def _open(self, key: str, record: bytes | None) -> bytes | str:
        """The value, or a message why it cannot be opened."""
        if record is None:
            return f"it is no longer there; `roost secrets set {key}`"
        try:
            return self.seal.open(_bound(key), _decode(record).sealed)
        except msgspec.MsgspecError:
            return f"its record is damaged; `roost secrets set {key}`"
        except Unsealable as error:
            message = str(error).removeprefix(_bound(key))
            return f"it{message}; give the server its --key-file, or `roost secrets set {key}`"

    def _resealed(self, key: str, record: bytes) -> bytes | None:
        stored = _decode(record)
        if self.seal.is_newest(stored.sealed):
            return None
        value = self._open(key, record)
        if isinstance(value, str):
            raise Unsealable(value)
        return _encode(msgspec.structs.replace(stored, sealed=self.seal.seal(_bound(key), value)))


def check_key(key: str) -> None:
    """PROJECT/NAME of a secret. Raises Invalid."""
    project, _, name = key.partition("/")
    check_name(project, "project")
    check_name(name, "name")


async def reseal(engine: Engine, ask: Ask, kind: str, again: Callable[[str, bytes], bytes | None]) -> Resealed:
    """Seal records with the newest key, in batches; records that change meanwhile are tried again.

    `again` seals one record; None: it has the newest key already. Raises Unsealable, which is reported.
    """
    done = 0
    for _ in range(PASSES_MAX):
        state = await engine.settled()
        unreadable: list[str] = []
        conflicts = 0
        for batch in _batches(kind, sorted(state.opaque_records.get(kind, {}).items()), again, unreadable):
            try:
                await ask(partial(PutRecords, records=batch))
                done += len(batch)
            except Conflict:
                conflicts += 1
        if not conflicts:
            return Resealed(done, unreadable)
    raise Conflict(f"{kind}s are being changed; ask again, what was sealed again stays so", code="busy")


def _batches(
    kind: str, records: list[tuple[str, bytes]], again: Callable[[str, bytes], bytes | None], unreadable: list[str]
) -> Iterator[tuple[OpaqueRecord, ...]]:
    batch: list[OpaqueRecord] = []
    size = 0
    for key, record in records:
        try:
            value = again(key, record)
        except Unsealable:
            unreadable.append(key)
            continue
        if value is None:
            continue
        batch.append(OpaqueRecord(kind, key, value, record))
        size += len(record)
        if size >= BATCH_BYTES_MAX or len(batch) == BATCH_MAX:
            yield tuple(batch)
            batch, size = [], 0
    if batch:
        yield tuple(batch)


def _bound(key: str) -> str:
    """The name that is authenticated with a sealed value: it cannot replace another."""
    return f"{KIND}/{key}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredSecret).decode
