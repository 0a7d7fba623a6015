"""What reasons speak of, and what all reasons have in common."""

import re

import msgspec

from roost.model.keys import (
    InstanceKey,
    WorkloadKey,
    instance_key,
    split_instance_key,
    split_workload_key,
    workload_key,
)

NodeName = str
PoolName = str
Principal = str  # who asked for it; empty: not known


class _Tagged(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, tag_field="code"):
    """A list that begins with its code."""


class ProjectRef(_Tagged, frozen=True, tag="project"):
    name: str


class WorkloadRef(_Tagged, frozen=True, tag="workload"):
    project: str
    name: str

    @classmethod
    def of(cls, key: str) -> "WorkloadRef":
        return cls(*split_workload_key(key))

    @property
    def key(self) -> WorkloadKey:
        return workload_key(self.project, self.name)


class InstanceRef(_Tagged, frozen=True, tag="instance"):
    project: str
    name: str
    index: int

    @classmethod
    def of(cls, key: str) -> "InstanceRef":
        workload, index = split_instance_key(key)
        return cls(*split_workload_key(workload), index)

    @property
    def key(self) -> InstanceKey:
        return instance_key(workload_key(self.project, self.name), self.index)


class HealthEvidence(_Tagged, frozen=True, tag="health"):
    """The failing health check of an attempt, and its last answer."""

    check: str  # http | tcp | command; empty: its document has none
    target: str  # a path, a port, a program
    answer: str


Ref = ProjectRef | WorkloadRef | InstanceRef

_NAME = r"[A-Za-z0-9][\w-]{0,62}"
# Not a part of a path, which has a slash or a dot before or behind it.
_SUBJECT = re.compile(rf"\bproject ({_NAME})|(?<![\w./-])({_NAME}/{_NAME})(?:\.(0|[1-9]\d{{0,6}}))?(?![\w/])")


def note_parts(note: str) -> tuple[str | Ref, ...]:
    """Free text of an operator with the projects and workloads that it names as data: not every reader may see them."""
    parts: list[str | Ref] = []
    end = 0
    for found in _SUBJECT.finditer(note):
        project, workload, index = found.groups()
        parts.append(note[end : found.start()])
        if project:
            parts.append(ProjectRef(project))
        else:
            parts.append(WorkloadRef.of(workload) if index is None else InstanceRef.of(found[0]))
        end = found.end()
    return (*parts, note[end:])


def _code(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class BaseReason(_Tagged, frozen=True, tag=_code):
    @property
    def code(self) -> str:
        return str(self.__struct_config__.tag)


class OnNode(BaseReason, frozen=True):
    node: NodeName


class Requested(BaseReason, frozen=True):
    by: Principal = ""
