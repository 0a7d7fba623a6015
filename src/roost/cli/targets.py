"""What users point at: NAME, NAME.INDEX, PROJECT/NAME, PROJECT/NAME.INDEX."""

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from roost.model.limits import DEFAULT_PROJECT

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from roost.client import Client

COMPLETIONS_MAX = 100  # names offered by a shell at once; more cannot be read


@dataclass(frozen=True)
class Target:
    """A workload, or one instance of it."""

    project: str
    name: str
    index: int | None = None

    def __str__(self) -> str:
        base = self.name if self.project == DEFAULT_PROJECT else f"{self.project}/{self.name}"
        return base if self.index is None else f"{base}.{self.index}"


class TargetType(click.ParamType[Target]):
    """An argument that names a workload or an instance; shells complete it with what the server knows."""

    name = "target"

    def convert(self, value: str | Target, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        if isinstance(value, Target):
            return value
        project, _, rest = value.rpartition("/")
        name, dot, index = rest.partition(".")
        if not name or (dot and not (index.isascii() and index.isdigit())) or len(index) > 9:
            self.fail(f"{value!r} is not like NAME, NAME.INDEX or PROJECT/NAME.INDEX", param, ctx)
        return Target(project, name, int(index) if dot else None)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem  # noqa: PLC0415

        from roost.cli.session import connect  # noqa: PLC0415  (only in a shell that completes)
        from roost.client.errors import ClientError  # noqa: PLC0415

        try:
            with connect() as client:
                known = client.workloads(limit=COMPLETIONS_MAX)
        except ClientError:
            return []
        names = [str(Target(each.project, each.name)) for each in known]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


TARGET = TargetType()


def in_project(target: Target, project: str) -> Target:
    """The target in the project that was asked for, unless it names its own."""
    return target if target.project else replace(target, project=project)


def usual_project(project: str) -> str:
    """The project that was asked for, or else the one that is meant where none is named."""
    return project or os.environ.get("ROOST_PROJECT") or DEFAULT_PROJECT


def instances_of(client: "Client", target: Target) -> list[Target]:
    """The instances a target stands for."""
    if target.index is not None:
        return [target]
    count = client.workload(target.project, target.name).count
    return [replace(target, index=index) for index in range(count)]
