"""The blocks of a document about whether it runs, and how long: `if`, `approve`, `concurrency`, `until`; checked."""

from typing import Any, Literal

import msgspec

from roost.model.errors import Invalid
from roost.model.keys import workload_key
from roost.model.spec.language import Evaluation, Language
from roost.model.spec.names import check_name, check_text
from roost.model.states import WorkloadKind

FIELDS = ("needs", "env")  # what a condition can speak about


class ApproveBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    role: Literal["submitter", "operator", "admin"] = "operator"


class ConcurrencyBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    group: str
    cancel: bool = False


def check_gated(kind: WorkloadKind, path: str, *, is_scheduled: bool, in_gang: bool, by_element: bool) -> None:
    """Refuse these blocks for work that does not start once and by itself."""
    if kind != WorkloadKind.JOB:
        raise Invalid(path, f"this is for jobs, not for a {kind}")
    if is_scheduled:
        raise Invalid(path, "a scheduled job starts at its ticks, and cannot have this")
    if in_gang:
        raise Invalid(path, "workloads of one gang start together, and cannot have this")
    if by_element:
        raise Invalid(path, "this is about all elements, and these wait for one each")


def condition_of(rule: str, path: str) -> str:
    """A condition in CEL over `needs.NAME.state`, `needs.NAME.result` and `env.NAME`."""
    if not rule:
        return ""
    CONDITIONS.check(rule, path)
    return rule


def concurrency_of(block: ConcurrencyBlock | None, project: str, path: str) -> str:
    """The group of a workload, of which newer work cancels older work; empty: none."""
    if block is None:
        return ""
    if not block.group.strip():
        raise Invalid(f"{path}.group", "a group needs a name")
    check_text(block.group, f"{path}.group")
    if not block.cancel:
        raise Invalid(f"{path}.cancel", "write `cancel: true`: newer work of a group cancels older work")
    return workload_key(project, block.group)


def until_of(owner: str, kind: WorkloadKind, project: str, name: str, path: str) -> str:
    """The workload that a service lives as long as; empty: it runs until it is cancelled."""
    if not owner:
        return ""
    check_name(owner, path)
    if kind != WorkloadKind.SERVICE:
        raise Invalid(path, f"only a service lives as long as another workload, not a {kind}")
    if owner == name:
        raise Invalid(path, "a service cannot live as long as itself")
    return workload_key(project, owner)


def decide(rule: str, needs: dict[str, Any], env: dict[str, str]) -> Evaluation:
    """Whether a condition holds. The size of the data is the caller's to bound."""
    try:
        return CONDITIONS.answer(rule, {"needs": needs, "env": env})
    except (TypeError, ValueError, OverflowError) as error:  # a result may hold a number that CEL has no type for
        return Evaluation(False, str(error)[:120])


def _types() -> dict[str, Any]:
    from cel_expr_python import cel

    text = cel.Type.STRING
    return {"needs": cel.Type.Map(text, cel.Type.DYN), "env": cel.Type.Map(text, text)}


CONDITIONS = Language("a condition", FIELDS, _types)
