"""Documents as text: JSON or YAML, bounded in depth and repetition, no key twice. The time is linear in the size."""

import json
import re
from typing import Any

import msgspec

from roost.model.errors import TooMuch, Unreadable
from roost.model.spec.folded_lines import refuse_folded_items

# YAML is read at some 5 MB/s. One document may have half a megabyte; with comments, twice that.
YAML_BYTES_MAX = 1 << 20
DEPTH_MAX = 64  # a document needs 4; deeper is an attack on the code that walks it
OPEN_BRACKETS_MAX = 1_000  # more than any script leaves open; the parser needs some 5 ms for so many
MESSAGE_LENGTH_MAX = 300


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
        raise TooMuch(f"YAML may have {YAML_BYTES_MAX:,} bytes here; send JSON, which may have more")
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
    refuse_folded_items(text, data)
    return data


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
