"""Rules about nodes: CEL expressions over what a node says of itself. A rule that cannot be evaluated is a no."""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from roost.model.errors import Invalid
from roost.model.limits import MACROS_MAX, RULE_LENGTH_MAX

if TYPE_CHECKING:
    from cel_expr_python import cel

    from roost.model.node import Facts

WORDS = "name, labels, zone, rack, region, pool, arch, drivers, gpu_model, taints, capacity, used, free"
NOW = ("used", "free")  # what changes with every placement
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_LABEL = re.compile(
    r"""\blabels\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*(['"])([^'"\\]*)\2\s*\])|['"]([^'"\\]*)['"]\s+in\s+labels\b"""
)
_MACRO = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(")


def check_rule(rule: str, path: str) -> None:
    """Refuse a rule that is not a yes-or-no expression over a node's words."""
    if len(rule) > RULE_LENGTH_MAX:
        raise Invalid(path, f"a rule may have {RULE_LENGTH_MAX} characters; this one has {len(rule)}")
    if len(_MACRO.findall(rule)) > MACROS_MAX:
        raise Invalid(path, f"a rule may walk over {MACROS_MAX} lists (all, exists, map, filter), not more")
    try:
        expression = _compiled(rule)
    except Exception as error:  # the library raises its own base classes for whatever its parser meets
        reason = " ".join(str(error).split())[:200]
        raise Invalid(path, f"not a rule over a node ({WORDS}): {reason}") from None
    if expression.return_type().name() not in ("BOOL", "DYN"):
        raise Invalid(path, f"a rule must say yes or no; this one is a {expression.return_type().name().lower()}")


def holds(rule: str, node: dict[str, Any]) -> tuple[bool, str]:
    """Whether the rule says yes for this node; if not because it could not be evaluated, why."""
    from cel_expr_python import cel

    value = _compiled(rule).eval(data=node)
    if value.type() == cel.Type.ERROR:
        return False, " ".join(str(value.value()).split())[:120]
    return value.value() is True, ""


def speaks_of_now(rule: str) -> bool:
    """Whether a rule speaks of what is in use, so that its answer changes with every placement."""
    return any(word in NOW for word in _words(rule))


def heard_by(rule: str, name: str, facts: "Facts") -> bytes:
    """What a rule can tell nodes apart by, packed: nodes with the same get the same answer."""
    words = words_of(name, facts)
    heard = {word: words[word] for word in _words(rule) if word in words}
    if "labels" in heard and (named := _labels(rule)) is not None:
        heard["labels"] = {label: facts.labels[label] for label in named if label in facts.labels}
    return _ENCODER.encode(heard)


@lru_cache(maxsize=4096)
def _words(rule: str) -> tuple[str, ...]:
    return tuple(sorted(set(_WORD.findall(_TEXT.sub("''", rule)))))


@lru_cache(maxsize=4096)
def _labels(rule: str) -> tuple[str, ...] | None:
    """The labels a rule speaks of by name; None if it speaks of labels in another way, too."""
    found = list(_LABEL.finditer(rule))
    if len(found) != len(re.findall(r"\blabels\b", rule)):
        return None
    return tuple(sorted({each[1] or each[3] or each[4] or "" for each in found}))


def words_of(name: str, facts: "Facts", used: "dict[str, int] | None" = None) -> dict[str, Any]:
    """What a rule can speak about; what is in use only where the rule speaks of it."""
    words: dict[str, Any] = {
        "name": name,
        "labels": facts.labels,
        "zone": facts.zone,
        "rack": facts.rack,
        "region": facts.region,
        "pool": facts.pool,
        "arch": facts.arch,
        "drivers": list(facts.drivers),
        "gpu_model": facts.gpu_model,
        "taints": list(facts.taints),
        "capacity": facts.resources,
    }
    if used is not None:
        words["used"] = used
        words["free"] = {each: total - used.get(each, 0) for each, total in facts.resources.items()}
    return words


@lru_cache(maxsize=4096)
def _compiled(rule: str) -> "cel.Expression":
    return _environment().compile(rule)


@lru_cache(maxsize=1)
def _environment() -> "cel.Env":
    from cel_expr_python import cel  # 16 MB of library: only where rules are used

    text = cel.Type.STRING
    return cel.NewEnv(
        variables={
            "name": text,
            "labels": cel.Type.Map(text, text),
            "zone": text,
            "rack": text,
            "region": text,
            "pool": text,
            "arch": text,
            "drivers": cel.Type.List(text),
            "gpu_model": text,
            "taints": cel.Type.List(text),
            "capacity": cel.Type.Map(text, cel.Type.INT),
            "used": cel.Type.Map(text, cel.Type.INT),
            "free": cel.Type.Map(text, cel.Type.INT),
        }
    )


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
