"""roost cp: files into and out of the work directory of a running instance."""

import click

from roost.cli.common.exit_codes import FAILED, USAGE, Failure
from roost.cli.common.kept_files import files_text
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, echo_err
from roost.cli.common.session import client_output
from roost.cli.common.targets import COPY_PLACE, InstancePath, in_project
from roost.cli.common.transfer_bar import TransferBar
from roost.client import Client


@click.command()
@click.argument("source", type=COPY_PLACE, metavar="SOURCE")
@click.argument("target", type=COPY_PLACE, metavar="TARGET")
@project_option
@client_output
def cp(client: Client, source: str | InstancePath, target: str | InstancePath, project: str) -> Output:
    """Copy a file or directory into or out of the work directory of a running instance.

    One of SOURCE and TARGET is on this machine, the other is NAME[.INDEX]:PATH, and PATH is in the work directory. As
    with `cp -r`: into a folder that is there or that ends with a slash, or else by this name. Files that are there are
    replaced, and each appears whole. NAME alone is the only running instance.

    Examples:
      roost cp config.yaml train:                   into the work directory
      roost cp patch.py train.3:src/                into a folder, of one element of an array
      roost cp train:out/model.bin .                out of it
      roost cp train:logs logs                      a directory
      roost cp ./a:b train:                         a file here that has a colon in its name

    A file that grows while it is read has the size that it had at first, and a line says so.

    Exit code: 1 if something could not be read; it is listed.
    Next: `roost get NAME` fetches the outputs of a run that has ended.
    """
    if isinstance(target, InstancePath) and not isinstance(source, InstancePath):
        return _into(client, source, target, project)
    if isinstance(source, InstancePath) and not isinstance(target, InstancePath):
        return _out_of(client, source, target, project)
    raise click.UsageError("one of SOURCE and TARGET is on this machine, the other is NAME[.INDEX]:PATH")


def _into(client: Client, source: str, target: InstancePath, project: str) -> Output:
    found = in_project(target.target, project)
    with TransferBar("sending") as bar:
        try:
            view = client.files.copy_to(
                source, found.project, found.name, target.path, index=found.index, sent=bar.moved, read=bar.read
            )
        except ValueError as error:
            raise Failure(str(error), exit_code=USAGE) from None
    return Output(view, f"{files_text(view.files, view.size)} in {found}:{view.path} on node {view.node}")


def _out_of(client: Client, source: InstancePath, target: str, project: str) -> Output:
    found = in_project(source.target, project)
    with TransferBar("fetching") as bar:
        try:
            view = client.files.copy_from(
                found.project, found.name, source.path, target, index=found.index, fetched=bar.moved
            )
        except ValueError as error:
            raise Failure(str(error), exit_code=USAGE) from None
    for path in view.grown:
        echo_err(f"{path} grew while it was read: its first bytes are here")
    for gap in view.gaps:
        echo_err(f"not copied: {gap.path}: {gap.message}")
    if view.more_gaps:
        echo_err(f"not copied: {view.more_gaps:,} more")
    where = f"{found}:{source.path}"
    return Output(view, f"{files_text(view.files, view.size)} of {where} in {target}", FAILED if view.gaps else 0)
