"""Credentials of the blob store: they come in and never go out."""

from typing import Annotated

import msgspec
from msgspec import Meta

Key = Annotated[str, Meta(min_length=1, max_length=512)]
Token = Annotated[str, Meta(max_length=8_192)]  # session tokens have up to 4 KB
Endpoint = Annotated[str, Meta(max_length=1_024, pattern=r"^(https?://[^/\s@?#]+/?)?$")]
Region = Annotated[str, Meta(max_length=64, pattern="^[A-Za-z0-9-]*$")]


class BlobKeysBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of S3. Without an endpoint and a region, those of `--blobs` stay."""

    access_key: Key
    secret_key: Key
    session_token: Token = ""
    endpoint: Endpoint = ""
    region: Region = ""

    def __repr__(self) -> str:
        return "<credentials of the blob store>"


class BlobKeysView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the blobs are, and which credentials are used: never the keys.

    `sealed`: those of the state; otherwise those that each server was started with. `readable`: the server's keys open
    them; `newest_key`: the first does.
    """

    bucket: str  # empty: a directory
    endpoint: str = ""
    region: str = ""
    sealed: bool
    changed_ms: int = 0
    changed_by: str = ""
    readable: bool = True
    newest_key: bool = True
