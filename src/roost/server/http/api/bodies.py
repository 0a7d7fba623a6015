"""Bodies: settings are read here; documents and raw bytes are left to their operation."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from litestar import Request
from litestar.openapi.spec import (
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    Reference,
    RequestBody,
    Schema,
)

from roost.model.errors import TooMuch, Unreadable, WrongType
from roost.model.records.enrolment import JoinRequest
from roost.model.spec.reading import read
from roost.model.spec.text import decode_json, decode_yaml
from roost.ports.blobs import CHUNK_BYTES_MAX
from roost.schema.access.blob_keys import BlobKeysBody
from roost.schema.access.secrets import SecretValue
from roost.schema.files import Digests
from roost.schema.webhooks import HookBody
from roost.server.operations.work.documents import BODY_BYTES_MAX, Documents
from roost.server.operations.work.files import RawBody

FIELDS_BYTES_MAX = 128 << 10  # of settings: a thousand names of nodes or projects; read in some milliseconds
FIELDS_YAML_BYTES_MAX = 32 << 10  # some 6 ms
FIELDS_BRACKETS_MAX = 1_000  # mappings and lists; settings have ten
BODY_S_MAX = 30.0  # 8 MiB over a slow line; without it, a few idle senders would hold all connections
BYTES_MAX: dict[type, int] = {
    Digests: 1 << 20,  # ten thousand of 75 bytes; checked in 3 ms
    BlobKeysBody: 64 << 10,  # two keys and a token, every byte escaped as six
    HookBody: 64 << 10,  # a URL, fifty names and a secret, every byte escaped as six
    JoinRequest: 16 << 10,  # a token, a name and a certificate request have 1 KB; it needs no token
    SecretValue: 256 << 10,  # 32 KiB in which every byte is escaped as six
}

SECRET: set[type] = {BlobKeysBody, HookBody, JoinRequest, SecretValue}  # errors do not repeat what is in them
JSON_ONLY: set[type] = {JoinRequest}  # its sender is unknown, and YAML is not parsed in linear time

JSON_TYPES = frozenset({b"", b"application/json"})
RAW_TYPES = frozenset({b"", b"application/octet-stream"})
YAML_TYPES = frozenset({b"application/yaml", b"application/x-yaml", b"text/yaml", b"text/x-yaml"})

T = TypeVar("T")


async def read_documents(request: "Request[Any, Any, Any]") -> Documents:
    """The body as it was sent, of which only the size is checked."""
    kind = _kind(request.scope["headers"])
    return Documents(await _body(request, BODY_BYTES_MAX), kind in YAML_TYPES)


async def read_raw(request: "Request[Any, Any, Any]") -> RawBody:
    """Bytes of any kind."""
    _kind(request.scope["headers"], RAW_TYPES)
    return RawBody(await _body(request, CHUNK_BYTES_MAX))


async def read_fields(request: "Request[Any, Any, Any]", fields: type[T], *, required: bool = False) -> T:
    """The body as a struct; no body means its defaults, where it is not required."""
    body = await _body(request, BYTES_MAX.get(fields, FIELDS_BYTES_MAX))
    raw: Any = {}
    if body or required:
        is_yaml = _kind(request.scope["headers"]) in YAML_TYPES
        if is_yaml and fields in JSON_ONLY:
            raise WrongType("this is taken as JSON only")
        if is_yaml and len(body) > FIELDS_YAML_BYTES_MAX:
            raise TooMuch(f"YAML may have {FIELDS_YAML_BYTES_MAX:,} bytes here; send JSON, which may have more")
        if body.count(b"{") + body.count(b"[") > FIELDS_BRACKETS_MAX:
            raise Unreadable(f"there are more than {FIELDS_BRACKETS_MAX:,} mappings and lists in it")
        raw = decode_yaml(body) if is_yaml else decode_json(body)
    return read(raw, fields, quotes=fields not in SECRET)


def taking(fields: type, *, required: bool = True, many: int = 0) -> type[Operation]:
    """The description of a handler that reads its body itself; `many`: it takes a list of up to so many."""
    one = Reference(ref=f"#/components/schemas/{fields.__name__}")
    schema = Schema(type=OpenAPIType.ARRAY, items=one, min_items=1, max_items=many) if many else one
    content = {kind: OpenAPIMediaType(schema=schema) for kind in ("application/json", "application/yaml")}
    return _described(content, required)


def taking_raw() -> type[Operation]:
    """The same for bytes of any kind."""
    schema = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
    return _described({"application/octet-stream": OpenAPIMediaType(schema=schema)}, required=False)


def _described(content: dict[str, OpenAPIMediaType], required: bool) -> type[Operation]:
    @dataclass
    class Taking(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content=content, required=required)

    return Taking


async def _body(request: "Request[Any, Any, Any]", most: int) -> bytes:
    """The bytes of the body. Most come in one piece; a sender of many pieces has a time limit."""
    for name, value in request.scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > most:
            raise _too_large(most)
    pieces: list[bytes] = []
    size = 0
    more = True
    try:
        async with asyncio.timeout(BODY_S_MAX):
            while more:
                message = await request.receive()
                if message["type"] != "http.request":
                    raise Unreadable("the connection was closed before the body was there")
                pieces.append(message["body"])
                size += len(pieces[-1])
                if size > most:
                    raise _too_large(most)
                more = message.get("more_body", False)
    except TimeoutError:
        raise Unreadable(f"the body was not there within {BODY_S_MAX:.0f} s") from None
    return b"".join(pieces)


def _kind(headers: Iterable[tuple[bytes, bytes]], known: frozenset[bytes] = JSON_TYPES | YAML_TYPES) -> bytes:
    kind = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise WrongType("a body is taken as it is, not compressed")
    if kind not in known:
        raise WrongType(f"a body of type {kind.decode('latin-1')[:100]} is not read here")
    return kind


def _too_large(most: int) -> TooMuch:
    return TooMuch(f"a body may have {most:,} bytes here", params={"bytes_max": most})
