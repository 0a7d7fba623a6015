"""Names of workloads and instances: NAME, NAME.INDEX, PROJECT/NAME, PROJECT/NAME.INDEX."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from roost.cli.common.session import connect
from roost.client.errors import ClientError
from roost.model.limits import DEFAULT_PROJECT

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


COMPLETIONS_MAX = 100  # names offered by a shell at once; more cannot be read


@dataclass(frozen=True)
class Target:
    project: str
    name: str
    index: int | None = None

    def __str__(self) -> str:
        base = self.name if self.project == DEFAULT_PROJECT else f"{self.project}/{self.name}"
        return base if self.index is None else f"{base}.{self.index}"


class TargetType(click.ParamType[Target]):
    """An argument that names a workload or an instance; shells complete it with what the server knows."""

    name = "target"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        project, _, rest = value.rpartition("/")
        name, dot, index = rest.partition(".")
        if not name or (dot and not (index.isascii() and index.isdigit())) or len(index) > 9:
            self.fail(f"{value!r} is not like NAME, NAME.INDEX or PROJECT/NAME.INDEX", param, ctx)
        return Target(project, name, int(index) if dot else None)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        try:
            with connect() as client:
                existing = client.workloads.list(limit=COMPLETIONS_MAX)
        except ClientError:
            return []
        names = [str(Target(workload.project, workload.name)) for workload in existing]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


TARGET = TargetType()


class ProjectObjectType(click.ParamType[tuple[str, str]]):
    """PROJECT/NAME of an object that is no workload; without a project it is one of `project`."""

    def __init__(self, name: str, project: str, meaning: str) -> None:
        self.name = name
        self._project = project
        self._meaning = meaning

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        project, slash, name = value.rpartition("/")
        if not name or "/" in project or (slash and not project):
            self.fail(f"{value!r} is not like PROJECT/NAME, or NAME {self._meaning}", param, ctx)
        return project or self._project, name


SECRET = ProjectObjectType("secret", DEFAULT_PROJECT, f"in project {DEFAULT_PROJECT}")
HOOK = ProjectObjectType("hook", "*", "for a hook of all projects")


def in_project(target: Target, project: str) -> Target:
    return target if target.project else replace(target, project=project)


def whole_workload(target: Target) -> Target:
    if target.index is not None:
        raise click.UsageError(f"this command is for a whole workload; leave out .{target.index}")
    return target
