"""roost audit: changes and their principals, newest first."""

import click

from roost.cli.common.output import moment, print_list
from roost.cli.common.session import connect, json_option
from roost.model.records.opaque import Audit

HEADER = ("TIME", "PRINCIPAL", "FROM", "CHANGE", "OBJECT")


@click.command()
@click.option("--who", default="", metavar="NAME", help="Only of root, token:NAME, or the e-mail address of a user.")
@click.option("--what", default="", metavar="KIND", help="Only this kind: submit, cancel, drain, setproject ...")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many at most.")
@json_option
def audit(who: str, what: str, limit: int, as_json: bool) -> None:
    """List changes with their principals, newest first. Requires operator in all projects.

    Examples:
      roost audit
      roost audit --who ann@example.com
      roost audit --who token:ci --what submit --limit 1000 --json

    Next: `roost tokens` and `roost members` list roles. The server shows its last thousand changes.
    """
    with connect() as client:
        found = client.audit.list(who=who, what=what, limit=limit)
    print_list(found, as_json, HEADER, _row, "no change matches")


def _row(entry: Audit) -> tuple[str, ...]:
    return moment(entry.at_ms), entry.who, entry.where or "-", entry.what, entry.target
