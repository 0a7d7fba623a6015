"""Rules about nodes: CEL expressions over what a node says of itself. A rule that cannot be evaluated is a no."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from roost.model.errors import Invalid
from roost.model.limits import MACROS_MAX, PATTERNS_MAX, RULE_LENGTH_MAX
from roost.model.spec.reading import did_you_mean
from roost.model.spec.rule_parser import MACROS, TEXT, RuleToken, calls, referenced_fields, tokens

if TYPE_CHECKING:
    from cel_expr_python import cel

    from roost.model.records.node import Facts

Counts = dict[str, int]
Room = tuple[Counts, Counts]  # what is used of each resource, and what is free

NOW = ("used", "free")  # what changes with every placement
EMPTY: Room = ({}, {})
REST_MAX = 30  # characters of a rule that are quoted where it cannot be read
OPERATORS = {"and": "&&", "or": "||", "not": "!", "=": "=="}  # of other languages
KINDS = {"string": "a text", "int": "a whole number", "uint": "a whole number", "double": "a number with a point",
         "bool": "a yes or no", "list": "a list", "map": "a mapping"}  # fmt: skip
REASON_MAX = 120  # characters of why a rule could not be evaluated

#: What a rule can speak about, and how a node says it.
FIELDS: "dict[str, Callable[[str, Facts, Room], Any]]" = {
    "name": lambda name, facts, room: name,
    "labels": lambda name, facts, room: facts.labels,
    "zone": lambda name, facts, room: facts.zone,
    "rack": lambda name, facts, room: facts.rack,
    "region": lambda name, facts, room: facts.region,
    "pool": lambda name, facts, room: facts.pool,
    "arch": lambda name, facts, room: facts.arch,
    "drivers": lambda name, facts, room: list(facts.drivers),
    "gpu_model": lambda name, facts, room: facts.gpu_model,
    "taints": lambda name, facts, room: list(facts.taints),
    "capacity": lambda name, facts, room: facts.resources,
    "used": lambda name, facts, room: room[0],
    "free": lambda name, facts, room: room[1],
}
KEYWORDS = ", ".join(FIELDS)


def check_rule(rule: str, path: str) -> None:
    """Refuse a rule that is not a yes-or-no expression over a node's fields, or that could take long to evaluate."""
    if len(rule) > RULE_LENGTH_MAX:
        raise Invalid(path, f"a rule may have {RULE_LENGTH_MAX} characters; this one has {len(rule)}")
    _check_cost(tokens(rule), path)
    try:
        expression = compiled(rule)
    except Exception as error:  # the library raises its own base classes for whatever its parser meets
        raise Invalid(path, f"not a rule over a node: {_in_own_words(rule, str(error))}") from None
    if expression.return_type().name() not in ("BOOL", "DYN"):
        raise Invalid(path, f"a rule must say yes or no; this one is a {expression.return_type().name().lower()}")


def _in_own_words(rule: str, error: str) -> str:
    """What the library's compiler met first, and where."""
    found = _MET.search(error)
    if found is None:
        return f"it cannot be read; a rule is about {KEYWORDS}"
    line, column, message = int(found[1]), int(found[2]), found[3]
    where = f"character {column}" if line == 1 else f"line {line}, character {column}"
    if unknown := _UNDECLARED.match(message):
        guess = did_you_mean(unknown[1], FIELDS) or f"; there are {KEYWORDS}"
        return f"nothing is called `{unknown[1]}`{guess}"
    if overload := _OVERLOAD.match(message):
        kinds = [KINDS.get(kind.partition("(")[0], kind) for kind in overload[2].split(", ")]
        return f"`{overload[1]}` at {where} does not take {' and '.join(kinds)}"
    rest = rule.split("\n")[line - 1][column - 1 :].strip()
    if not rest:
        return f"it is incomplete at {where}"
    word = re.split(r"\s", rest, maxsplit=1)[0]
    hint = f"; write `{OPERATORS[word]}`" if word in OPERATORS else ""
    return f"it cannot be read from {where} on: {rest[:REST_MAX]!r}{hint}"


def holds(rule: str, node: dict[str, Any]) -> tuple[bool, str]:
    """Whether the rule says yes for this node; if not because it could not be evaluated, why."""
    from cel_expr_python import cel

    try:
        value = compiled(rule).eval(data=node)
    except RuntimeError as error:  # it went over the library's own budget
        return False, _short(error)
    if value.type() == cel.Type.ERROR:
        return False, _short(value.value())
    return value.value() is True, ""


def depends_on_usage(rule: str) -> bool:
    """Whether a rule reads current use, so that its answer changes with every placement."""
    return any(field.word in NOW for field in referenced_fields(rule))


def cache_key(rule: str, name: str, facts: "Facts", room: Room = EMPTY) -> bytes:
    """The fields of a node that a rule reads, packed: equal keys have equal answers."""
    received = {}
    for word, keys in referenced_fields(rule):
        log_line = FIELDS.get(word)
        if log_line is not None:
            text = log_line(name, facts, room)
            if keys is not None and isinstance(text, dict):
                text = {key: text[key] for key in keys if key in text}
            received[word] = text
    return _ENCODER.encode(received)


def _check_cost(pieces: list[RuleToken], path: str) -> None:
    """Keep a rule below some ten milliseconds on any node: lists are not walked within lists, and patterns are plain.

    A counted repetition makes a pattern of a few letters huge; one that is put together cannot be looked at here.
    """
    if len(calls(pieces, MACROS)) > MACROS_MAX:
        raise Invalid(path, f"a rule may walk over {MACROS_MAX} list (all, exists, map, filter), not more")
    patterns = calls(pieces, ("matches",))
    if len(patterns) > PATTERNS_MAX:
        raise Invalid(path, f"a rule may have {PATTERNS_MAX} patterns (matches), not {len(patterns)}")
    if patterns and calls(pieces, MACROS):
        message = "a rule may have patterns (matches) or walk over a list (all, exists, map, filter), not both"
        raise Invalid(path, message)
    for start in patterns:
        pattern = _pattern(pieces, start + 1)
        if pattern is None:
            raise Invalid(path, "the pattern of matches must be one text in quotes")
        if "{" in pattern or _ESCAPED.search(pattern):
            raise Invalid(path, "a pattern cannot count ({3}) or name characters by number (\\x41)")


def _pattern(pieces: list[RuleToken], start: int) -> str | None:
    """The last argument of a call that opens here, if it is one literal."""
    depth = 0
    for index in range(start, len(pieces)):
        value = pieces[index].value if pieces[index].kind != TEXT else ""
        depth += (value in ("(", "[", "{")) - (value in (")", "]", "}"))
        if depth == 0:
            last, before = pieces[index - 1], pieces[index - 2]
            literal = last.kind == TEXT or last.value[-1:] in "'\"" and len(last.value) > 1
            return last.value if literal and before.value in ("(", ",") and before.kind != TEXT else None
    return None


def _short(reason: object) -> str:
    return " ".join(str(reason).split())[:REASON_MAX]


@lru_cache(maxsize=4096)
def compiled(rule: str) -> "cel.Expression":
    return _environment().compile(rule)


@lru_cache(maxsize=1)
def _environment() -> "cel.Env":
    from cel_expr_python import cel  # 16 MB of library: only where rules are used

    text = cel.Type.STRING
    texts, counts = cel.Type.List(text), cel.Type.Map(text, cel.Type.INT)
    kinds = {"labels": cel.Type.Map(text, text), "drivers": texts, "taints": texts}
    kinds |= {"capacity": counts, "used": counts, "free": counts}
    return cel.NewEnv(variables={word: kinds.get(word, text) for word in FIELDS})


_MET = re.compile(r"<input>:(\d+):(\d+): (?:Syntax error: )?(.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^'.]*)")
_OVERLOAD = re.compile(r"found no matching overload for '[_@]?(.+?)_?' applied to '(?:\w+\.)?\((.*)\)'")
_ESCAPED = re.compile(r"\\[xXuU0-7]")
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
