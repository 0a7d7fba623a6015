"""Workloads that start together or not at all, as documents say it."""

from typing import Protocol

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.keys import workload_key
from roost.model.spec.names import check_name
from roost.model.spec.placement import between
from roost.model.states import WorkloadKind


class Gang(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Workloads of one project that start together or not at all: how many instances they have in all."""

    name: str
    size: int


class Ganged(Protocol):
    """The fields of a document that matter here."""

    name: str
    kind: WorkloadKind
    project: str
    count: int
    gang: bool | Gang


def gang_of(document: Ganged, path: str) -> tuple[str, int]:
    """The gang's name (no project has a name with a slash in it, so the two kinds never meet) and its size."""
    gang = document.gang
    if not gang:
        return "", 0
    if document.kind == WorkloadKind.VM:
        raise Invalid(path, "a gang is made of jobs or services")
    if gang is True:
        between(document.count, 1, limits.GANG_MAX, f"{path.removesuffix('gang')}count", "instances of a gang")
        return workload_key(document.project, document.name), 0
    assert isinstance(gang, Gang)
    check_name(gang.name, f"{path}.name")
    between(gang.size, max(1, document.count), limits.GANG_MAX, f"{path}.size", "instances of a gang")
    return f"{document.project}:{gang.name}", gang.size
