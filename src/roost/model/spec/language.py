"""CEL in documents: expressions that say yes or no, compiled once, and bounded in what one evaluation can cost."""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.model.errors import Invalid
from roost.model.limits import MACROS_MAX, PATTERNS_MAX, RULE_LENGTH_MAX
from roost.model.spec.reading import did_you_mean
from roost.model.spec.rule_parser import MACROS, TEXT, RuleToken, calls, tokens

if TYPE_CHECKING:
    from cel_expr_python import cel

REST_MAX = 30  # characters of a rule that are quoted where it cannot be read
OPERATORS = {"and": "&&", "or": "||", "not": "!", "=": "=="}  # of other languages
KINDS = {"string": "a text", "int": "a whole number", "uint": "a whole number", "double": "a number with a point",
         "bool": "a yes or no", "list": "a list", "map": "a mapping"}  # fmt: skip
REASON_MAX = 120  # characters of why a rule could not be evaluated


class Evaluation(NamedTuple):
    """Whether an expression says yes; `error`: why it could not be evaluated, which is a no."""

    yes: bool
    error: str = ""


class Language:
    """What expressions of one kind can speak about. `noun` is what one is called in errors."""

    def __init__(self, noun: str, fields: Iterable[str], types: Callable[[], dict[str, Any]]) -> None:
        self.fields = tuple(fields)
        self._noun = noun
        self._types = types
        self._environment: cel.Env | None = None
        self.compiled: Callable[[str], cel.Expression] = lru_cache(maxsize=4096)(self._compile)

    def check(self, rule: str, path: str) -> None:
        """Refuse what is not a yes-or-no expression over the fields, or could take long to evaluate."""
        if len(rule) > RULE_LENGTH_MAX:
            raise Invalid(path, f"a rule may have {RULE_LENGTH_MAX} characters; this one has {len(rule)}")
        _check_cost(tokens(rule), path)
        try:
            expression = self.compiled(rule)
        except Exception as error:  # the library raises its own base classes for whatever its parser meets
            raise Invalid(path, f"not {self._noun}: {self._in_own_words(rule, str(error))}") from None
        if expression.return_type().name() not in ("BOOL", "DYN"):
            raise Invalid(path, f"a rule must say yes or no; this one is a {expression.return_type().name().lower()}")

    def answer(self, rule: str, data: dict[str, Any]) -> Evaluation:
        from cel_expr_python import cel

        try:
            value = self.compiled(rule).eval(data=data)
        except RuntimeError as error:  # it went over the library's own budget
            return Evaluation(False, _short(error))
        if value.type() == cel.Type.ERROR:
            return Evaluation(False, _short(value.value()))
        return Evaluation(value.value() is True)

    def _compile(self, rule: str) -> "cel.Expression":
        if self._environment is None:
            from cel_expr_python import cel  # 16 MB of library: only where rules are used

            self._environment = cel.NewEnv(variables=self._types())
        return self._environment.compile(rule)

    def _in_own_words(self, rule: str, error: str) -> str:
        """What the library's compiler met first, and where."""
        keywords = ", ".join(self.fields)
        found = _MET.search(error)
        if found is None:
            return f"it cannot be read; a rule is about {keywords}"
        line, column, message = int(found[1]), int(found[2]), found[3]
        where = f"character {column}" if line == 1 else f"line {line}, character {column}"
        if unknown := _UNDECLARED.match(message):
            guess = did_you_mean(unknown[1], self.fields) or f"; there are {keywords}"
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


_MET = re.compile(r"<input>:(\d+):(\d+): (?:Syntax error: )?(.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^'.]*)")
_OVERLOAD = re.compile(r"found no matching overload for '[_@]?(.+?)_?' applied to '(?:\w+\.)?\((.*)\)'")
_ESCAPED = re.compile(r"\\[xXuU0-7]")
