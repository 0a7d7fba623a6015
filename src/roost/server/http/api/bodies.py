"""Bodies: what people send, as plain data. JSON or YAML, bounded in size, depth and repetition, no key twice."""

import asyncio
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, Reference, RequestBody, Schema

from roost.model.errors import Invalid, TooMuch, Unreadable, WrongType
from roost.model.records.enrolment import JoinRequest
from roost.schema.secrets import SecretValue
from roost.schema.webhooks import HookBody

BODY_BYTES_MAX = 8 << 20  # ten thousand documents of 800 bytes
# YAML is read at some 5 MB/s while all else waits. One document may have half a megabyte; with comments, twice that.
YAML_BYTES_MAX = 1 << 20
BODY_S_MAX = 30.0  # 8 MiB over a slow line; without it, a few idle senders would hold all connections
DEPTH_MAX = 64  # a document needs 4; deeper is an attack on the code that walks it
OPEN_BRACKETS_MAX = 1_000  # more than any script leaves open; the parser needs some 5 ms for so many
MESSAGE_LENGTH_MAX = 300

BYTES_MAX: dict[type, int] = {
    HookBody: 64 << 10,  # a URL, fifty names and a secret, every byte escaped as six
    JoinRequest: 16 << 10,  # a token, a name and a certificate request have 1 KB; it needs no token
    SecretValue: 256 << 10,  # 32 KiB in which every byte is escaped as six
}

JSON_ONLY = {JoinRequest}  # its sender is unknown, and YAML is not parsed in linear time

JSON_TYPES = frozenset({b"", b"application/json"})
YAML_TYPES = frozenset({b"application/yaml", b"application/x-yaml", b"text/yaml", b"text/x-yaml"})

T = TypeVar("T")


async def read_data(request: "Request[Any, Any, Any]") -> Any:
    kind = _kind(request.scope["headers"])
    body = await _body(request)
    return decode_yaml(body) if kind in YAML_TYPES else decode_json(body)


async def read_fields(request: "Request[Any, Any, Any]", fields: type[T], *, required: bool = False) -> T:
    """The body as a struct; no body means its defaults, where it is not required."""
    body = await _body(request, BYTES_MAX.get(fields, BODY_BYTES_MAX))
    raw: Any = {}
    if body or required:
        is_yaml = _kind(request.scope["headers"]) in YAML_TYPES
        if is_yaml and fields in JSON_ONLY:
            raise WrongType("this is taken as JSON only")
        raw = decode_yaml(body) if is_yaml else decode_json(body)
    try:
        return msgspec.convert(raw, fields)
    except msgspec.ValidationError as error:
        raise _odd_field(raw, fields, error) from None


def decode_json(body: bytes) -> Any:
    """JSON in the strict sense. A repeated key is refused: one of the two would be ignored silently."""
    try:
        data = msgspec.json.decode(body)
        if body.count(b"{") + body.count(b"[") > DEPTH_MAX:
            _check_depth(data)
        _TWICE.decode(body.decode())
    except msgspec.DecodeError as error:
        raise Unreadable(f"this is not JSON: {error}"[:MESSAGE_LENGTH_MAX]) from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"this is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise _too_deep() from None
    return data


def decode_yaml(body: bytes) -> Any:
    """YAML that JSON can express: one document, no repeated key, no aliases."""
    import ryaml  # only where YAML comes

    if len(body) > YAML_BYTES_MAX:
        raise TooMuch(f"a body in YAML may have {YAML_BYTES_MAX:,} bytes; send JSON, which may have {BODY_BYTES_MAX:,}")
    try:
        text = body.decode()
        _refuse_open_brackets(text)
        if "*" in text and "&" in text:
            _refuse_aliases(ryaml, text)
        data = ryaml.loads(text)
    except UnicodeDecodeError as error:
        raise Unreadable(f"this is not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise Unreadable(f"this is not YAML: {error}"[:MESSAGE_LENGTH_MAX]) from None
    _check_depth(data)
    return data


def taking(fields: type, *, required: bool = True, many: int = 0) -> type[Operation]:
    """The description of a handler that reads its body itself; `many`: it takes a list of up to so many."""
    one = Reference(ref=f"#/components/schemas/{fields.__name__}")
    schema = Schema(type=OpenAPIType.ARRAY, items=one, min_items=1, max_items=many) if many else one
    content = {kind: OpenAPIMediaType(schema=schema) for kind in ("application/json", "application/yaml")}

    @dataclass
    class Taking(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content=content, required=required)

    return Taking


def _odd_field(raw: Any, fields: type, error: msgspec.ValidationError) -> Invalid:
    """The wrong field, and why. In a mapping with any keys, the key is found by converting each alone."""
    message, _, where = str(error).partition(" - at `")
    path = where.rpartition("$")[2].strip(".`")
    for begin, answer in (("Object contains unknown", "there is no such field"), ("Object missing", "this is needed")):
        if message.startswith(begin):
            return Invalid(message.partition("`")[2].rstrip("`")[:MESSAGE_LENGTH_MAX], answer)
    if path.endswith("[...]") and path.removesuffix("[...]") in raw:
        path = path.removesuffix("[...]")
        for key, value in raw[path].items():
            try:
                msgspec.convert({**raw, path: {key: value}}, fields)
            except msgspec.ValidationError:
                path = f"{path}.{key:.80}"
                break
    return Invalid(path or "$", message[:MESSAGE_LENGTH_MAX])


async def _body(request: "Request[Any, Any, Any]", most: int = BODY_BYTES_MAX) -> bytes:
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


def _kind(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    kind = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise WrongType("a body is taken as it is, not compressed")
    if kind not in JSON_TYPES and kind not in YAML_TYPES:
        raise WrongType(f"a body of type {kind.decode('latin-1')[:100]} is not read here")
    return kind


def _refuse_aliases(ryaml: Any, text: str) -> None:
    """Refuse documents in which a part refers to another: a few lines of that can stand for terabytes.

    A star may also be just a star. So each is made to refer to a name that does not exist: only a real alias fails.
    """
    anonymous = "nobody"
    while anonymous in text:
        anonymous += "-else"
    try:
        ryaml.loads(text.replace("*", f"*{anonymous}"))
    except ValueError as error:
        if "unknown anchor" in str(error):
            raise Unreadable("aliases (*name) are not taken here; write the part out where it is meant") from None


def _refuse_open_brackets(text: str) -> None:
    """The parser takes quadratic time for brackets that are not closed. Those in texts count: there are few of them."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += 1 if found.group() in "[{" else -1
        if depth > OPEN_BRACKETS_MAX:
            raise _too_deep()


def _check_depth(data: Any) -> None:
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(DEPTH_MAX):
        inner = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_large(most: int) -> TooMuch:
    return TooMuch(f"a body may have {most:,} bytes here", params={"bytes_max": most})


def _too_deep() -> Unreadable:
    return Unreadable(f"this is nested deeper than {DEPTH_MAX} levels")


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Unreadable(f"the key {key!r:.100} is there twice", path=key[:100])
            seen.add(key)


_BRACKETS = re.compile(r"[\[\]{}]")
_TWICE = json.JSONDecoder(object_pairs_hook=_once)
