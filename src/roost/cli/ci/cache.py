"""roost ci cache: what runs of a project have left for later runs."""

import click

from roost.cli.common.format import ago
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output
from roost.client import Client
from roost.model.spec.units import show_size
from roost.schema.pipelines.caches import CacheView

HEADER = ("KEY", "FILES", "SIZE", "SAVED", "USED", "BY")
EMPTY = "there is nothing in the cache of this project; an action with `cache` saves its files"


@click.group()
def cache() -> None:
    """List and delete what actions have left in the cache of a project.

    Examples:
      roost ci cache list
      roost ci cache delete pip-4f2a90c1d03b77e1

    Next: `roost show NAME-RUN-ACTION.0` has in its story what a run got and saved.
    """


@cache.command("list")
@project_option
@client_output
def list_(client: Client, project: str) -> Output:
    """List the entries of the cache, those used last first.

    Examples:
      roost ci cache list
      roost ci cache list --json

    Next: `roost ci cache delete KEY`.
    """
    found = sorted(client.caches.list(project), key=lambda entry: -entry.used_ms)
    return listed(found, HEADER, _row, EMPTY)


@cache.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--all", "every", is_flag=True, help="Delete all entries of the project.")
@project_option
@client_output
def delete(client: Client, keys: tuple[str, ...], every: bool, project: str) -> Output:
    """Delete entries of the cache: all of the keys, or none.

    Later runs save them again. Runs that have their files already keep them.

    Examples:
      roost ci cache delete pip-4f2a90c1d03b77e1
      roost ci cache delete --all

    Next: `roost ci cache list`.
    """
    if bool(keys) == every:
        raise click.UsageError("give keys, or --all")
    count = client.caches.delete(*keys, project=project, every=every)
    return Output({"deleted": count}, f"{count} {'entry is' if count == 1 else 'entries are'} deleted")


def _row(entry: CacheView) -> tuple[str, ...]:
    size = show_size(entry.size)
    return entry.key, f"{entry.files:,}", size, ago(entry.saved_ms), ago(entry.used_ms), entry.saved_by
