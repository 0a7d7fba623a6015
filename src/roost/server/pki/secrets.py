"""Secrets of projects: sealed where they are stored, opened only when an order is written to the node that needs them.

Neither the core nor a store ever sees a value: they see the name that a document refers to, and a sealed record.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from roost.core.state.state import State
from roost.model.errors import Conflict, Invalid, TooMuch
from roost.model.events import Event, PutRecords
from roost.model.limits import SECRET_BYTES_MAX, SECRETS_BYTES_MAX
from roost.model.protocol import Answer, Order, Run, Welcome
from roost.model.records.opaque import OpaqueRecord
from roost.model.records.secret import Handed
from roost.model.records.webhook import Hook
from roost.model.spec.document import decode_document, may_have_secrets, secret_names
from roost.model.spec.names import check_name
from roost.schema.access.secrets import Resealed, SecretView
from roost.server.engine.engine import Engine
from roost.server.pki.encryption import Seal, Unsealable
from roost.stores.batches import in_batches

KIND, HOOK, BLOB_KEYS = "secret", "hook", "blob-keys"
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
        sealed = self.seal.seal(bound(KIND, key), value)
        return OpaqueRecord(KIND, key, encode(StoredSecret(sealed, len(value), self._engine.clock.now_ms(), by)))

    def view(self, key: str, record: bytes) -> SecretView:
        project, _, name = key.partition("/")
        stored = decode_secret(record)
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

    def values(self, project: str, names: Iterable[str]) -> list[bytes]:
        """The values of secrets that are there and can be opened, to mask them."""
        records = self._engine.state.opaque_records.get(KIND, {})
        opened = (self._open(f"{project}/{name}", records.get(f"{project}/{name}")) for name in names)
        return [value for value in opened if isinstance(value, bytes)]

    async def reseal(self, ask: Ask) -> Resealed:
        """Seal secrets, also those of hooks, with the newest key; records that change meanwhile are tried again."""
        done = 0
        for _ in range(PASSES_MAX):
            state = await self._engine.settled()
            unreadable: list[str] = []
            conflicts = 0
            records = self._resealed(state, unreadable)
            for batch in in_batches(records, lambda record: len(record.value or b""), BATCH_BYTES_MAX, BATCH_MAX):
                try:
                    await ask(partial(PutRecords, records=tuple(batch)))
                    done += len(batch)
                except Conflict:
                    conflicts += 1
            if not conflicts:
                return Resealed(done, unreadable)
        raise Conflict("secrets are being changed; ask again, what was sealed again stays so", code="busy")

    def _with_secrets(self, order: Order, allocated: Container[int], opened: dict[str, bytes | str]) -> Order:
        if not isinstance(order, Run) or order.token in allocated or not may_have_secrets(order.document):
            return order
        names = secret_names(decode_document(order.document))
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
            return self.seal.open(bound(KIND, key), decode_secret(record).sealed)
        except msgspec.MsgspecError:
            return f"its record is damaged; `roost secrets set {key}`"
        except Unsealable as error:
            message = str(error).removeprefix(bound(KIND, key))
            return f"it{message}; give the server its --key-file, or `roost secrets set {key}`"

    def _resealed(self, state: State, unreadable: list[str]) -> Iterator[OpaqueRecord]:
        for kind, decode in SEALED.items():
            for key, record in sorted(state.opaque_records.get(kind, {}).items()):
                name = bound(kind, key)
                try:
                    stored = decode(record)
                    if not stored.sealed or self.seal.is_newest(stored.sealed):
                        continue
                    sealed = self.seal.seal(name, self.seal.open(name, stored.sealed))
                except (Unsealable, msgspec.MsgspecError):
                    unreadable.append(key if kind == KIND else name)
                    continue
                yield OpaqueRecord(kind, key, encode(msgspec.structs.replace(stored, sealed=sealed)), record)


def check_key(key: str) -> None:
    """PROJECT/NAME of a secret. Raises Invalid."""
    project, _, name = key.partition("/")
    check_name(project, "project")
    check_name(name, "name")


def bound(kind: str, key: str) -> str:
    """The name that is authenticated with a sealed value: it cannot replace another."""
    return f"{kind}/{key}"


encode = msgspec.msgpack.Encoder().encode
decode_secret = msgspec.msgpack.Decoder(StoredSecret).decode
decode_hook = msgspec.msgpack.Decoder(Hook).decode
SEALED: dict[str, Callable[[bytes], StoredSecret | Hook]] = {
    KIND: decode_secret, BLOB_KEYS: decode_secret, HOOK: decode_hook
}  # fmt: skip
