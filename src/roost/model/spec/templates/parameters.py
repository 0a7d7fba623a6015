"""Parameters of a template: what their definitions may be, and the values that are given for them."""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.template import Parameter, Value
from roost.model.spec.names import check_name, check_text
from roost.model.spec.placement import between
from roost.model.spec.problems import Problems, check_each, indexed
from roost.model.spec.reading import did_you_mean
from roost.model.spec.templates.placeholders import check_parameter_name

if TYPE_CHECKING:
    from cel_expr_python import cel

TYPE_NAMES = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
              "array": "a list of texts"}  # fmt: skip
NUMBERS = ("integer", "number")
TEXTS = ("string", "array")
#: Fields of a definition that have a meaning for some types only.
OF_TYPES = {"minimum": NUMBERS, "maximum": NUMBERS, "min_length": TEXTS, "max_length": TEXTS, "pattern": TEXTS,
            "enum": ("string", "array", *NUMBERS), "secret": ("string",)}  # fmt: skip
NOT_OF_SECRETS = ("default", "enum", "pattern", "minimum", "maximum", "min_length", "max_length")
_COUNTED = re.compile(r"\{|\\[xXuU0-7pPC]")


def check_parameters(parameters: Mapping[str, Parameter], path: str) -> None:
    between(len(parameters), 0, limits.PARAMETERS_MAX, path, "parameters")
    problems = Problems()
    for name, parameter in parameters.items():
        problems.check(check_parameter_name, name, path)
        problems.check(_check_parameter, parameter, f"{path}.{name:.60}")
    problems.refuse()


def _check_parameter(parameter: Parameter, path: str) -> None:
    check_text(parameter.description, f"{path}.description")
    for field, types in OF_TYPES.items():
        if getattr(parameter, field) not in (None, "", False, []) and parameter.type not in types:
            raise Invalid(f"{path}.{field}", f"a parameter of type {parameter.type} has no {field}")
    if parameter.secret:
        for field in NOT_OF_SECRETS:
            if getattr(parameter, field) not in (None, "", [], msgspec.UNSET):
                raise Invalid(f"{path}.{field}", f"the name of a secret has no {field}")
    for field in ("min_length", "max_length"):
        length = getattr(parameter, field)
        if length is not None:
            between(length, 0, limits.PARAMETER_LENGTH_MAX, f"{path}.{field}", "characters")
    for low, high in (("minimum", "maximum"), ("min_length", "max_length")):
        least, most = getattr(parameter, low), getattr(parameter, high)
        if least is not None and most is not None and least > most:
            raise Invalid(f"{path}.{low}", f"this is more than {high}")
    if parameter.pattern:
        _check_pattern(parameter.pattern, f"{path}.pattern")
    between(len(parameter.enum), 0, limits.ENUM_MAX, f"{path}.enum", "values")
    one = msgspec.structs.replace(parameter, type="string" if parameter.type == "array" else parameter.type, enum=[])
    check_each(lambda value, here: check_value(one, value, here), indexed(parameter.enum, f"{path}.enum"))
    if parameter.default is not msgspec.UNSET:
        if parameter.required is True:
            raise Invalid(f"{path}.required", "a parameter with a default is not required; leave out one of them")
        check_value(parameter, parameter.default, f"{path}.default")


def _check_pattern(pattern: str, path: str) -> None:
    """Patterns are matched by RE2, in linear time. A counted repetition makes a short one huge."""
    if len(pattern) > limits.PATTERN_LENGTH_MAX:
        raise Invalid(path, f"a pattern may have {limits.PATTERN_LENGTH_MAX} characters; this one has {len(pattern)}")
    if _COUNTED.search(pattern):
        message = "a pattern cannot count ({3}) or name characters by number or class (\\x41, \\pL)"
        raise Invalid(path, f"{message}; min_length and max_length count characters")
    value = _expression().eval(data={"value": "", "pattern": pattern})
    if not isinstance(value.value(), bool):
        raise Invalid(path, f"this is no regular expression as RE2 has them: {pattern!r:.60}")


def check_values(parameters: Mapping[str, Parameter], given: Mapping[str, Any], path: str) -> dict[str, Value]:
    """The values of all parameters that have one. Raises everything that is wrong with them."""
    problems = Problems()
    for name in given:
        if name not in parameters:
            known = ", ".join(list(parameters)[:20]) or "none"
            guess = did_you_mean(name, parameters) or f"; there are {known}"
            problems.found.append(Invalid(f"{path}.{name:.60}", f"there is no such parameter{guess}"))
    values: dict[str, Value] = {}
    for name, parameter in parameters.items():
        if name in given:
            problems.check(check_value, parameter, given[name], f"{path}.{name}")
            values[name] = given[name]
        elif parameter.default is not msgspec.UNSET:
            values[name] = parameter.default
        elif parameter.is_needed:
            about = f" ({parameter.description})" if parameter.description else ""
            problems.found.append(Invalid(f"{path}.{name}", f"this is needed: {_wanted(parameter)}{about}"))
    problems.refuse()
    return values


def check_value(parameter: Parameter, value: Any, path: str) -> None:
    if not _is_of_type(parameter.type, value):
        raise Invalid(path, f"this is {_wanted(parameter)}{_not(parameter, value)}")
    if isinstance(value, list):
        between(len(value), 0, limits.PARAMETER_ITEMS_MAX, path, "texts")
        one = msgspec.structs.replace(parameter, type="string", default=msgspec.UNSET)
        check_each(lambda item, here: check_value(one, item, here), indexed(value, path))
        return
    if isinstance(value, str):
        _check_text_value(parameter, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(parameter, value, path)
    if parameter.enum and value not in parameter.enum:
        listed = ", ".join(f"{item!s:.60}" for item in parameter.enum[:20])
        raise Invalid(path, f"this is one of {listed}{did_you_mean(str(value), map(str, parameter.enum))}")


def _check_text_value(parameter: Parameter, value: str, path: str) -> None:
    least, most = parameter.min_length or 0, parameter.max_length
    most = limits.PARAMETER_LENGTH_MAX if most is None else most
    if not least <= len(value) <= most:
        raise Invalid(path, f"this has {least:,} to {most:,} characters, not {len(value):,}")
    if "\0" in value or not _is_utf8(value):
        raise Invalid(path, "this is not text that can be passed to a program (a NUL or a lone surrogate)")
    if parameter.secret:
        try:
            check_name(value, path)
        except Invalid:
            raise Invalid(path, "this is the name of a secret of the project, never its value") from None
    if parameter.pattern and not matches(parameter.pattern, value):
        raise Invalid(path, f"this has to match {parameter.pattern!r}{_not(parameter, value)}")


def _check_number(parameter: Parameter, value: int | float, path: str) -> None:
    if isinstance(value, int) and abs(value) > limits.PARAMETER_INTEGER_MAX:
        raise Invalid(path, f"this is a number up to {limits.PARAMETER_INTEGER_MAX:,}")
    least, most = parameter.minimum, parameter.maximum
    if (least is not None and value < least) or (most is not None and value > most):
        raise Invalid(path, f"this is {_wanted(parameter)}{_not(parameter, value)}")


def matches(pattern: str, value: str) -> bool:
    """Whether the whole value matches. The pattern was checked, and the value is not long."""
    found = _expression().eval(data={"value": value, "pattern": f"^(?:{pattern})$"})
    return found.value() is True


def text_of(value: Value) -> str:
    """A value inside a text, an argument or a variable."""
    assert not isinstance(value, list)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wanted(parameter: Parameter) -> str:
    if parameter.secret:
        return "the name of a secret"
    least, most = parameter.minimum, parameter.maximum
    bounds = f" from {least} to {most}" if least is not None and most is not None else ""
    bounds = bounds or (
        f" of at least {least}" if least is not None else f" of at most {most}" if most is not None else ""
    )
    return TYPE_NAMES[parameter.type] + bounds


def _not(parameter: Parameter, value: Any) -> str:
    if parameter.secret or isinstance(value, list | dict):
        return ""
    shown = (
        {None: "nothing", True: "true", False: "false"}.get(value)
        if value is None or value is True or value is False
        else None
    )
    return f", not {shown or repr(value)[:60]}"


def _is_of_type(name: str, value: Any) -> bool:
    if name == "array":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if name == "boolean":
        return isinstance(value, bool)
    if name == "string":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) if name == "integer" else math.isfinite(value)


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=1)
def _expression() -> "cel.Expression":
    from cel_expr_python import cel  # 16 MB of library: only where patterns are used

    return cel.NewEnv(variables={"value": cel.Type.STRING, "pattern": cel.Type.STRING}).compile(
        "value.matches(pattern)"
    )
