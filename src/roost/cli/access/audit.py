"""roost audit: changes and their principals, newest first."""

import click

from roost.cli.common.format import moment
from roost.cli.common.options import limit_option
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output
from roost.client import Client
from roost.model.records.opaque import Audit

HEADER = ("TIME", "PRINCIPAL", "FROM", "CHANGE", "OBJECT")


@click.command()
@click.option("--who", default="", metavar="NAME", help="Only of root, token:NAME, or the e-mail address of a user.")
@click.option("--what", default="", metavar="KIND", help="Only this kind: submit, cancel, drain, setproject ...")
@limit_option(50, 1_000)
@client_output
def audit(client: Client, who: str, what: str, limit: int) -> Output:
    """List changes with their principals, newest first. Requires operator in all projects.

    Examples:
      roost audit
      roost audit --who ann@example.com
      roost audit --who token:ci --what submit --limit 1000 --json

    Next: `roost tokens` and `roost members` list roles. The server shows its last thousand changes.
    """
    found = client.audit.list(who=who, what=what, limit=limit)
    return listed(found, HEADER, _row, "no change matches")


def _row(entry: Audit) -> tuple[str, ...]:
    return moment(entry.at_ms), entry.who, entry.where or "-", entry.what, entry.target
