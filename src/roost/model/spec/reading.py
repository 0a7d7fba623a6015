"""Plain data as a typed block. Reports everything that is wrong in our own words, each with its path."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from enum import Enum
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from roost.model.errors import Invalid
from roost.model.spec.problems import ERRORS_MAX, all_of

T = TypeVar("T")

KIND_NAMES: dict[Any, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
KEY_LENGTH_MAX = 60  # of an unknown field, as it is quoted and compared
ALIKE = 0.75  # how much of two words has to be the same: one wrong letter of four
NO_SUCH_FIELD = "there is no such field"
OTHER_NAMES = {  # what other systems call a field
    "args": "command", "cmd": "command", "cpus": "resources", "cpu": "resources", "cron": "schedule",
    "depends_on": "after", "environment": "env", "gpu": "resources", "gpus": "resources", "healthcheck": "health",
    "instances": "count", "memory": "resources", "needs": "after", "replicas": "count", "script": "steps",
    "working_dir": "steps",
}  # fmt: skip


def read(raw: object, kind: type[T], path: str = "", *, quotes: bool = True) -> T:
    """Data as a struct. Raises Invalid with everything that is wrong. `quotes`: errors may repeat values."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        found = list(islice(_wrong(raw, kind, path, quotes), ERRORS_MAX))
        raise all_of(found or [Invalid(path or "$", str(error)[:300])]) from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the known one that is most like it, or nothing."""
    known = list(known)
    other = OTHER_NAMES.get(word)
    close = [other] if other in known else get_close_matches(word[:KEY_LENGTH_MAX].lower(), known, n=1, cutoff=ALIKE)
    return f"; did you mean `{close[0]}`?" if close else ""


def type_name(hint: Any) -> str:
    """What a value has to be."""
    if get_origin(hint) is Annotated:
        base, meta = get_args(hint)[:2]
        return type_name(base) + bounds(meta)
    if get_origin(hint) in (Union, UnionType):
        options = [option for option in get_args(hint) if option is not NoneType]
        if float in options:
            options = [option for option in options if option is not int]
        return " or ".join(dict.fromkeys(map(type_name, options)))
    if get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        values = [str(value) for value in get_args(hint) or list(hint)]
        return " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))
    if is_struct(hint):
        needed = [f"`{field.encode_name}`" for field in msgspec.structs.fields(hint) if field.required]
        return f"a mapping with {' and '.join(needed)}" if needed else "a mapping"
    if hint in KIND_NAMES:
        return KIND_NAMES[hint]
    return "a mapping" if get_origin(hint) is dict or hint is dict else "a list"


def bounds(meta: Any) -> str:
    """The limits of a value, of a `Meta` or anything with its attributes."""
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge} to {meta.le}"
    if meta.ge is not None:
        return f" of at least {meta.ge}"
    return f" of at most {meta.max_length} characters" if meta.max_length is not None else ""


def _wrong(raw: Any, hint: Any, path: str, quotes: bool) -> Iterator[Invalid]:
    """What is wrong with a value: its parts, or the value itself."""
    try:
        msgspec.convert(raw, hint)
        return
    except msgspec.ValidationError:
        pass
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    container = next((option for option in options if _is_made_of_parts(raw, option)), None)
    if container is None:
        quoted = "; write it in quotes" if str in options and isinstance(raw, int | float) else ""
        given = f", not {_shown(raw)}{quoted}" if quotes else ""
        yield Invalid(path or "$", f"this is {type_name(hint)}{given}")
    elif is_struct(container):
        yield from _wrong_fields(raw, container, path, quotes)
    elif isinstance(raw, dict):
        for key, value in raw.items():
            if isinstance(key, str):
                yield from _wrong(value, get_args(container)[1], f"{path}.{key:.60}", quotes)
            else:
                yield Invalid(path, f"a name here is a text, not {_shown(key)}; write it in quotes")
    else:
        for index, item in enumerate(raw):
            yield from _wrong(item, get_args(container)[0], f"{path}[{index}]", quotes)


def _wrong_fields(raw: dict[Any, Any], kind: type, path: str, quotes: bool) -> Iterator[Invalid]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        here = f"{path}.{key!s:.60}" if path else f"{key!s:.60}"
        if not isinstance(key, str):
            yield Invalid(path or "$", f"the name of a field is a text, not {_shown(key)}")
        elif key in fields:
            yield from _wrong(value, fields[key].type, here, quotes)
        else:
            free = [name for name in fields if name not in raw]
            yield Invalid(here, NO_SUCH_FIELD + did_you_mean(key, free))
    for name, field in fields.items():
        if field.required and name not in raw:
            yield Invalid(f"{path}.{name}" if path else name, f"this is needed: {type_name(field.type)}")


def is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _is_made_of_parts(raw: Any, hint: Any) -> bool:
    origin = get_origin(hint) or hint
    if isinstance(raw, dict):
        return is_struct(hint) or origin is dict
    return isinstance(raw, list) and origin in (list, tuple)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return type_name(type(value))
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 200:  # Python does not print absurd numbers
        return "so large a number"
    return f"{value!r:.60}"
