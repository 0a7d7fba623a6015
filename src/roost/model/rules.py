"""Rules about nodes: CEL expressions over what a node says of itself. A rule that cannot be evaluated is a no."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from roost.model.errors import Invalid
from roost.model.limits import RULE_LENGTH_MAX

if TYPE_CHECKING:
    from cel_expr_python import cel

    from roost.model.node import Facts

WORDS = "name, labels, zone, rack, region, pool, arch, drivers, capacity"


def check_rule(rule: str, path: str) -> None:
    """Refuse a rule that is not a yes-or-no expression over a node's words."""
    if len(rule) > RULE_LENGTH_MAX:
        raise Invalid(path, f"a rule may have {RULE_LENGTH_MAX} characters; this one has {len(rule)}")
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


def words_of(name: str, facts: "Facts") -> dict[str, Any]:
    """What a rule can speak about."""
    return {
        "name": name,
        "labels": facts.labels,
        "zone": facts.zone,
        "rack": facts.rack,
        "region": facts.region,
        "pool": facts.pool,
        "arch": facts.arch,
        "drivers": list(facts.drivers),
        "capacity": facts.resources,
    }


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
            "capacity": cel.Type.Map(text, cel.Type.INT),
        }
    )
