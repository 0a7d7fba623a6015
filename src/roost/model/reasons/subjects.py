"""What reasons speak of, and what all reasons have in common."""

import re

import msgspec

NodeName = str
PoolName = str
Principal = str  # who asked for it; empty: not known


class ProjectRef(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="code", tag="project"):
    """A project."""

    name: str


class WorkloadRef(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="code", tag="workload"):
    """A workload."""

    project: str
    name: str

    @classmethod
    def of(cls, key: str) -> "WorkloadRef":
        """From PROJECT/NAME."""
        project, _, name = key.partition("/")
        return cls(project, name)

    @property
    def key(self) -> str:
        """PROJECT/NAME"""
        return f"{self.project}/{self.name}"


class InstanceRef(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="code", tag="instance"):
    """An instance of a workload."""

    project: str
    name: str
    index: int

    @classmethod
    def of(cls, key: str) -> "InstanceRef":
        """From PROJECT/NAME.INDEX."""
        workload, _, index = key.rpartition(".")
        project, _, name = workload.partition("/")
        return cls(project, name, int(index))

    @property
    def key(self) -> str:
        """PROJECT/NAME.INDEX"""
        return f"{self.project}/{self.name}.{self.index}"


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


class BaseReason(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="code", tag=_code):
    """What all reasons share."""

    @property
    def code(self) -> str:
        """The stable name of this reason."""
        return str(self.__struct_config__.tag)
