"""Keys of the bucket, sealed in the state: all servers use them, and a change needs no restart.

Without sealed ones a server uses those that it was started with: from its environment, a file, or its machine's role.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from roost.model.errors import Conflict
from roost.model.records.opaque import OpaqueRecord
from roost.schema.access.blob_keys import BlobKeysBody, BlobKeysView
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.encryption import Seal, Unsealable
from roost.server.pki.secrets import BLOB_KEYS, StoredSecret, bound, decode_secret, encode

if TYPE_CHECKING:  # S3 is loaded where it is used
    from roost.blobs.bucket import Bucket, S3Config

NAME = "s3"
LOOK_S = 1.0

log = logging.logger("files")


class BlobKeys:
    """`bucket`: None for blobs in a directory."""

    seal: Seal  # set before the first request

    def __init__(self, engine: Engine, bucket: "Bucket | None") -> None:
        self._engine = engine
        self._bucket = bucket
        self._started_with = bucket.config if bucket is not None else None
        self._applied: bytes | None = None

    async def run(self) -> None:
        while True:
            self.apply()
            await asyncio.sleep(LOOK_S)

    def apply(self) -> None:
        """Use the keys that are stored now. Those that cannot be opened change nothing."""
        record = self._record()
        if self._bucket is None or record is self._applied or not self._engine.readable:
            return
        self._applied = record
        config = self._started_with if record is None else self._opened(record)
        if config is None:
            hint = "give the server its --key-file, or set the credentials again"
            log.error("the sealed credentials of the blob store cannot be opened", hint=hint)
            return
        changed = config != self._bucket.config
        self._bucket.use(config)
        if changed:
            log.info("the blob store has other credentials", sealed=record is not None)

    async def problem(self, body: BlobKeysBody) -> str:
        """Why the bucket cannot be used with these keys; empty: it can. Raises Conflict."""
        config = self.config(body)
        from roost.blobs.bucket import Bucket

        return await asyncio.to_thread(lambda: Bucket(config).check())

    def config(self, body: BlobKeysBody) -> "S3Config":
        """The bucket with these keys. Raises Conflict where there is none."""
        if self._started_with is None:
            raise Conflict("the blobs of this server are in a directory, not in S3", code="no_bucket")
        return msgspec.structs.replace(
            self._started_with, access_key=body.access_key, secret_key=body.secret_key,
            session_token=body.session_token, endpoint=body.endpoint or self._started_with.endpoint,
            region=body.region or self._started_with.region,
        )  # fmt: skip

    def record(self, body: BlobKeysBody, by: str) -> OpaqueRecord:
        sealed = self.seal.seal(bound(BLOB_KEYS, NAME), msgspec.msgpack.encode(body))
        return OpaqueRecord(BLOB_KEYS, NAME, encode(StoredSecret(sealed, len(sealed), self._engine.clock.now_ms(), by)))

    def view(self, record: bytes | None) -> BlobKeysView:
        """What may be shown: nothing of the keys."""
        if self._bucket is None:
            return BlobKeysView(bucket="", sealed=record is not None)
        used = self._bucket.config
        view = BlobKeysView(bucket=used.bucket, endpoint=used.endpoint, region=used.region, sealed=record is not None)
        if record is None:
            return view
        try:
            stored = decode_secret(record)
        except msgspec.MsgspecError:
            return msgspec.structs.replace(view, readable=False)
        return msgspec.structs.replace(
            view, changed_ms=stored.changed_ms, changed_by=stored.changed_by,
            readable=self._body(stored) is not None, newest_key=self.seal.is_newest(stored.sealed),
        )  # fmt: skip

    def _opened(self, record: bytes) -> "S3Config | None":
        try:
            body = self._body(decode_secret(record))
        except msgspec.MsgspecError:
            return None
        return self.config(body) if body is not None else None

    def _body(self, stored: StoredSecret) -> BlobKeysBody | None:
        try:
            return msgspec.msgpack.decode(self.seal.open(bound(BLOB_KEYS, NAME), stored.sealed), type=BlobKeysBody)
        except (Unsealable, msgspec.MsgspecError):
            return None

    def _record(self) -> bytes | None:
        return self._engine.state.opaque_records.get(BLOB_KEYS, {}).get(NAME)
