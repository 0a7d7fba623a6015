"""Credentials of the blob store: set, shown without the keys, removed."""

from typing import Annotated

from msgspec import Meta

from roost.model.errors import Invalid, NotFound
from roost.model.records.opaque import OpaqueRecord
from roost.schema.access.blob_keys import BlobKeysBody, BlobKeysView
from roost.server.files.keys import NAME
from roost.server.operations.context import Call
from roost.server.pki.secrets import BLOB_KEYS

Check = Annotated[bool, Meta(description="Refuse keys with which S3 cannot be used.")]


async def get_blob_keys(call: Call) -> BlobKeysView:
    """Show which credentials the servers use for S3: never the keys."""
    return call.context.blob_keys.view((await call.records(BLOB_KEYS)).get(NAME))


async def set_blob_keys(call: Call, fields: BlobKeysBody, check: Check = True) -> BlobKeysView:
    """Set the credentials of S3 for all servers. They are encrypted at rest, and used within seconds.

    They are tried first, with one request: keys with which S3 cannot be used are refused.
    """
    keys = call.context.blob_keys
    keys.config(fields)
    if check and (problem := await keys.problem(fields)):
        raise Invalid("secret_key", problem, code="credentials_refused")
    record = keys.record(fields, call.principal.name)
    await call.put(record)
    keys.apply()
    return keys.view(record.value)


async def remove_blob_keys(call: Call) -> None:
    """Remove the credentials: every server uses those again that it was started with."""
    known = (await call.records(BLOB_KEYS)).get(NAME)
    if known is None:
        raise NotFound("no credentials of the blob store are set")
    await call.put(OpaqueRecord(BLOB_KEYS, NAME, None, known))
    call.context.blob_keys.apply()
