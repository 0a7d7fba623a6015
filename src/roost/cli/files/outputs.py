"""roost outputs and roost get: files that instances left, listed and fetched."""

from pathlib import Path
from typing import Any

import click
import msgspec

from roost.cli.common.exit_codes import NO_RESULT, Failure
from roost.cli.common.kept_files import files_text, gap_texts
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, echo_err, print_table
from roost.cli.common.session import client_output
from roost.cli.common.targets import TARGET, Target, in_project
from roost.cli.common.transfer_bar import TransferBar
from roost.client import Client
from roost.files.manifest import Entry, FileEntry, FolderEntry, LinkEntry, Manifest
from roost.model.spec.units import show_size
from roost.schema.work import InstanceView, OutputsSummary

FILES_HEADER = ("PATH", "SIZE", "MODE")
to_option = click.option(
    "--to", type=click.Path(path_type=Path), metavar="DIR", help="Directory, which is made. [default: ./NAME]"
)
force_option = click.option("--force", is_flag=True, help="Replace files that are there with another content.")
INSTANCES_HEADER = ("INSTANCE", "STATE", "FILES", "SIZE", "NOT KEPT")


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@client_output
def outputs(client: Client, target: Target, project: str) -> Output:
    """List the files that a workload left: its outputs.

    Of one instance, every file; of an array, one line for each element that was to leave some. Which files are kept
    is in the document (`outputs: [dist/**]`), or in `roost run -o PATTERN`.

    Examples:
      roost outputs build         files of the only instance, or one line per element
      roost outputs build.7       files of one element of an array
      roost outputs build --json

    Exit code: 5 if there are no outputs.
    Next: `roost get NAME` fetches them; `roost show NAME` has the reason why some were not kept.
    """
    target = in_project(target, project)
    found, is_array = _instances(client, target)
    if is_array:
        rows = [_row(view, view.outputs) for view in found if view.outputs is not None]
        return Output([_about(view) for view in found], lambda: _print(INSTANCES_HEADER, rows, target), _code(found))
    (view,) = found
    has_files = view.outputs is not None and view.outputs.digest
    manifest = client.files.manifest(view.outputs.digest, target.project) if has_files and view.outputs else Manifest()

    def show() -> None:
        _print(
            FILES_HEADER, [_file_row(entry) for entry in manifest.entries if not isinstance(entry, FolderEntry)], target
        )
        for text in gap_texts(view.outputs) if view.outputs else ():
            echo_err(f"not kept: {text}")

    return Output({**_about(view), "entries": manifest.entries}, show, _code(found))


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@to_option
@force_option
@project_option
@client_output
def get(
    client: Client, target: Target, patterns: tuple[str, ...], to: Path | None, force: bool, project: str
) -> Output:
    """Fetch the files that a workload left: all, or those that match a pattern.

    A new directory appears when all files are here. In one that exists, files with the same content are left alone,
    and those with another content are refused unless --force is given. Of an array, each element has a folder with
    its index.

    Examples:
      roost get build                         into ./build
      roost get build 'dist/*.whl' --to .     only wheels, with their folder
      roost get sweep --to results            results/0, results/1, ...
      roost get sweep.7

    `*` and `?` match inside a name, `**` any number of folders. The name of a folder is everything in it.

    Exit code: 5 if there are no such files.
    Next: `roost outputs NAME` lists them.
    """
    target = in_project(target, project)
    found, is_array = _instances(client, target)
    place = to or Path(target.name if target.index is None else f"{target.name}.{target.index}")
    digests = {str(view.index): view.outputs.digest for view in found if view.outputs and view.outputs.digest}
    if not digests:
        raise Failure(f"{target} has no outputs", f"`roost show {target}` has the reason", NO_RESULT)
    with TransferBar("fetching") as bar:
        wanted = digests if is_array else next(iter(digests.values()))
        got = client.files.get(wanted, place, patterns, target.project, force=force, fetched=bar.moved)
    files = len(list(got.files()))
    if not got.entries and patterns:
        raise Failure(f"no output of {target} matches", f"`roost outputs {target}` lists them", NO_RESULT)
    size = got.bytes_total()
    value = {"to": str(place), "instances": len(digests), "files": files, "size": size}
    return Output(value, f"{files_text(files, size)} in {place}")


def _instances(client: Client, target: Target) -> tuple[list[InstanceView], bool]:
    """The instances that are meant, and whether they are several elements of an array."""
    if target.index is not None:
        return [client.instances.get(target.project, target.name, target.index)], False
    if client.workloads.get(target.project, target.name).count == 1:
        return [client.instances.get(target.project, target.name, 0)], False
    return client.instances.list(target.project, target.name), True


def _print(header: tuple[str, ...], rows: list[tuple[str, ...]], target: Target) -> None:
    print_table(header, rows)
    if not rows:
        echo_err(f"{target} has no outputs")


def _row(view: InstanceView, found: OutputsSummary) -> tuple[str, ...]:
    missing = "; ".join(gap_texts(found)) or "-"
    return str(view.index), view.state, str(found.files), show_size(found.size), missing


def _file_row(entry: Entry) -> tuple[str, ...]:
    if isinstance(entry, LinkEntry):
        return f"{entry.path} -> {entry.target}", "-", "link"
    assert isinstance(entry, FileEntry)
    return entry.path, show_size(entry.size), f"{entry.mode:04o}"


def _about(view: InstanceView) -> dict[str, Any]:
    summary = msgspec.to_builtins(view.outputs or OutputsSummary())
    return {"index": view.index, "state": view.state, "attempt": view.attempt, **summary}


def _code(found: list[InstanceView]) -> int:
    return 0 if any(view.outputs and view.outputs.digest for view in found) else NO_RESULT
