"""roost blobs: files with a name in a project, for inputs of many workloads."""

from pathlib import Path

import click

from roost.cli.common.exit_codes import NO_RESULT, Failure
from roost.cli.common.format import ago
from roost.cli.common.kept_files import files_text
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, listed
from roost.cli.common.sending import send_paths, sent_places
from roost.cli.common.session import client_output, listing
from roost.cli.common.targets import BLOB_NAME
from roost.cli.common.transfer_bar import TransferBar
from roost.cli.files.credentials import credentials
from roost.client import Client
from roost.model.spec.units import show_size
from roost.schema.files import NamedFilesView

HEADER = ("NAME", "FILES", "SIZE", "CHANGED", "BY")
EMPTY = "there are no named files here; `roost blobs put NAME PATH` sends some"


@listing("blobs")
@project_option
@client_output
def blobs(client: Client, project: str) -> Output:
    """List, send, fetch and delete files that have a name in a project.

    A workload has them as an input: `inputs: [{from: "blob:NAME"}]`. It gets the files that have the name when it is
    submitted. Only contents that the project lacks are sent.

    Examples:
      roost blobs
      roost blobs put imagenet ./imagenet
      roost blobs get imagenet 'labels/*' --to here
      roost blobs delete imagenet

    Next: `roost blobs put NAME PATH`.
    """
    return listed(client.named_files.list(project), HEADER, _row, EMPTY)


@blobs.command()
@click.argument("name", type=BLOB_NAME, metavar="NAME")
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@project_option
@client_output
def put(client: Client, name: str, paths: tuple[str, ...], project: str) -> Output:
    """Send a directory or files, and give them a name, in place of what had it before.

    Of one directory, its content is sent; several paths keep their names. Workloads that were submitted before keep
    the files they have.

    Examples:
      roost blobs put imagenet ./imagenet
      roost blobs put tools bin/lint bin/format

    Next: `from: "blob:NAME"` in `inputs` of a workload.
    """
    is_directory = len(paths) == 1 and Path(paths[0]).is_dir()
    sent = send_paths(client, {"": Path(paths[0])} if is_directory else sent_places(paths), project)
    named = client.named_files.set(project, name, digest=sent.digest)
    return Output(named, f"blob:{name} is {files_text(named.files, named.size)}")


@blobs.command()
@click.argument("name", type=BLOB_NAME, metavar="NAME")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="DIR", help="Directory, which is made. [default: ./NAME]"
)
@click.option("--force", is_flag=True, help="Replace files that are there with another content.")
@project_option
@client_output
def get(client: Client, name: str, patterns: tuple[str, ...], to: Path | None, force: bool, project: str) -> Output:
    """Fetch the files of a name: all, or those that match a pattern. As with `roost get`, nothing is half-written.

    Examples:
      roost blobs get imagenet
      roost blobs get imagenet 'labels/*' --to here

    Exit code: 5 if there are no such files.
    Next: `roost blobs put NAME PATH` replaces them.
    """
    named, place = client.named_files.get(project, name), to or Path(name)
    with TransferBar("fetching") as bar:
        got = client.files.get(named.digest, place, patterns, project, force=force, fetched=bar.moved)
    if not got.entries and patterns:
        raise Failure(f"no file of blob:{name} matches", exit_code=NO_RESULT)
    files, size = len(list(got.files())), got.bytes_total()
    return Output({"to": str(place), "files": files, "size": size}, f"{files_text(files, size)} in {place}")


@blobs.command()
@click.argument("name", type=BLOB_NAME, metavar="NAME")
@project_option
@client_output
def delete(client: Client, name: str, project: str) -> Output:
    """Delete a name. Its files stay for the workloads that have them.

    Examples:
      roost blobs delete imagenet

    Next: `roost blobs`.
    """
    client.named_files.delete(project, name)
    return Output({"project": project, "name": name}, f"blob:{name} is deleted")


def _row(found: NamedFilesView) -> tuple[str, ...]:
    return found.name, f"{found.files:,}", show_size(found.size), ago(found.changed_ms), found.changed_by


blobs.add_command(credentials)
