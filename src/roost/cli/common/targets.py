"""Names of workloads and instances: NAME, NAME.INDEX, PROJECT/NAME, PROJECT/NAME.INDEX."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from roost.cli.common.session import connect
from roost.client import Client
from roost.client.errors import ClientError
from roost.model.limits import DEFAULT_PROJECT

RUN_PREFIX = "ci:"  # no workload has a colon in its name
COMPLETIONS_MAX = 100  # names offered by a shell at once; more cannot be read


@dataclass(frozen=True)
class Target:
    project: str
    name: str
    index: int | None = None

    @property
    def run(self) -> str:
        """The run of a pipeline that ci:RUN names; empty: it names a workload."""
        return self.name.removeprefix(RUN_PREFIX) if self.name.startswith(RUN_PREFIX) else ""

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

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        def names(client: Client) -> list[str]:
            return [str(Target(load.project, load.name)) for load in client.workloads.list(limit=COMPLETIONS_MAX)]

        return _completed(names, incomplete)


class InstancePath(NamedTuple):
    """A path in the work directory of an instance."""

    target: Target
    path: str


class CopyPlaceType(click.ParamType[str | InstancePath]):
    """A path here, or NAME[.INDEX]:PATH. A path here that has a colon begins with a dot or a slash."""

    name = "place"

    def convert(
        self, value: str | InstancePath, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | InstancePath:
        if isinstance(value, InstancePath):
            return value
        name, colon, path = value.partition(":")
        if not colon or value.startswith((".", "/", "~")):
            return value
        return InstancePath(TARGET.convert(name, param, ctx), path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(f"{item.value}:") for item in TARGET.shell_complete(ctx, param, incomplete)]
        return [*names, CompletionItem(incomplete, type="file")]


class NodeType(click.ParamType[str]):
    """An argument that names a node; shells complete it."""

    name = "node"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completed(lambda client: [node.name for node in client.nodes.list()], incomplete)


class BlobNameType(click.ParamType[str]):
    """An argument that names files of the project; shells complete it."""

    name = "blob"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value.removeprefix("blob:")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        project = ctx.params.get("project") or DEFAULT_PROJECT
        return _completed(lambda client: [blob.name for blob in client.named_files.list(project)], incomplete)


def _completed(names: Callable[[Client], list[str]], incomplete: str) -> list[CompletionItem]:
    """What a shell offers; nothing if the server does not answer."""
    try:
        with connect() as client:
            return [CompletionItem(name) for name in names(client) if name.startswith(incomplete)][:COMPLETIONS_MAX]
    except ClientError:
        return []


TARGET = TargetType()
NODE = NodeType()
BLOB_NAME = BlobNameType()
COPY_PLACE = CopyPlaceType()


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
