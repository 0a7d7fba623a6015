"""Rules about nodes: CEL expressions over what a node says of itself. A rule that cannot be evaluated is a no."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from roost.model.spec.language import Evaluation, Language
from roost.model.spec.rule_parser import referenced_fields

if TYPE_CHECKING:
    from cel_expr_python import cel

    from roost.model.records.node import Facts

Counts = dict[str, int]
Room = tuple[Counts, Counts]  # what is used of each resource, and what is free

NOW = ("used", "free")  # what changes with every placement
EMPTY: Room = ({}, {})

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


def check_rule(rule: str, path: str) -> None:
    RULES.check(rule, path)


def holds(rule: str, node: dict[str, Any]) -> Evaluation:
    """Whether the rule says yes for this node; if not because it could not be evaluated, why."""
    return RULES.answer(rule, node)


def compiled(rule: str) -> "cel.Expression":
    return RULES.compiled(rule)


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


def _types() -> "dict[str, Any]":
    from cel_expr_python import cel

    text = cel.Type.STRING
    texts, counts = cel.Type.List(text), cel.Type.Map(text, cel.Type.INT)
    kinds = {"labels": cel.Type.Map(text, text), "drivers": texts, "taints": texts}
    kinds |= {"capacity": counts, "used": counts, "free": counts}
    return {word: kinds.get(word, text) for word in FIELDS}


RULES = Language("a rule over a node", FIELDS, _types)
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
