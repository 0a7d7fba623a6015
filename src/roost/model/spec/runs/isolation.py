"""Who a process of a document is on its node, how it is kept apart there, and whether its limits must hold."""

import re
from typing import Protocol

from roost.model.errors import Invalid
from roost.model.spec.runs.work import field
from roost.model.states import IsolationLevel, LimitsMode, WorkloadKind

USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
LIMITED = ("cpu", "memory")  # resources that a node may limit


class Isolated(Protocol):
    """The fields of a document that matter here."""

    kind: WorkloadKind
    image: str
    isolation: IsolationLevel | None
    run_as: str
    limits: LimitsMode
    resources: dict[str, int | float | str]


def check_isolation(document: Isolated, path: str) -> None:
    """These are of processes. An engine isolates its containers and enforces their limits; a machine is apart."""
    asked = {
        "isolation": document.isolation is not None,
        "run_as": bool(document.run_as),
        "limits": document.limits != LimitsMode.BEST_EFFORT,
    }
    for name in (name for name, is_asked in asked.items() if is_asked):
        if document.image or document.kind == WorkloadKind.VM:
            what = "virtual machine" if document.kind == WorkloadKind.VM else "container"
            raise Invalid(field(path, name), f"this is for processes; a {what} is isolated and limited as it is")
    if document.run_as:
        check_user(document.run_as, field(path, "run_as"))
    if asked["limits"] and not limits_required(document):
        raise Invalid(field(path, "limits"), "there is nothing to enforce: give resources.cpu or resources.memory")


def check_user(name: str, path: str) -> None:
    if USER.fullmatch(name) is None:
        message = "this is the name of a user: lower-case letters, digits, `-` and `_`, at most 32"
        raise Invalid(path, f"{message}; not {name!r:.50}")


def isolation_needed(document: Isolated) -> str:
    """The least that its node offers; empty: anything."""
    return "" if document.isolation in (None, IsolationLevel.NONE) else str(document.isolation)


def limits_required(document: Isolated) -> tuple[str, ...]:
    """What its node has to enforce."""
    if document.limits != LimitsMode.REQUIRED:
        return ()
    return tuple(name for name in LIMITED if name in document.resources)
