"""Templates as they are stored, and what a workload made from one remembers."""

from typing import Any, Literal

import msgspec

Value = str | int | float | bool | list[str]
TEMPLATE, TEMPLATE_VERSION = "template", "template-version"  # the kinds of its records


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A parameter of a template: a subset of JSON Schema. An array is one of texts; its rules are for each of them."""

    type: Literal["string", "integer", "number", "boolean", "array"] = "string"
    description: str = ""
    default: Value | msgspec.UnsetType = msgspec.UNSET
    required: bool | msgspec.UnsetType = msgspec.UNSET  # as a rule: if it has no default
    enum: list[str | int | float] = []
    pattern: str = ""  # RE2; the whole value has to match
    minimum: int | float | None = None
    maximum: int | float | None = None
    min_length: int | None = None
    max_length: int | None = None
    secret: bool = False  # the value is the name of a secret of the workload's project

    @property
    def is_needed(self) -> bool:
        return self.default is msgspec.UNSET if self.required is msgspec.UNSET else self.required


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is written: a workload document without a name, in which {{NAME}} stands for a parameter."""

    workload: dict[str, Any]
    parameters: dict[str, Parameter] = {}
    description: str = ""


class TemplateHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored under PROJECT/NAME; project `*`: it is shared. `versions`: those that are kept, the newest last."""

    versions: tuple[int, ...]
    description: str
    changed_ms: int
    changed_by: str


class TemplateVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored under PROJECT/NAME@VERSION."""

    template: Template
    made_ms: int
    made_by: str


class TemplateUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The `template` of a document. What is stored has the version that was used, and whether it is a shared one."""

    name: str
    version: int | None = None  # the newest
    shared: bool = False  # not the template of that name of the project
    parameters: dict[str, Value] = {}

    @property
    def label(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"
