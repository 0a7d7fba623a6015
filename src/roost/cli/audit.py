"""roost audit: who changed what, from where, newest first."""

import time

import click

from roost.cli.output import print_json, print_table, say
from roost.cli.session import connect, json_option

HEADER = ("WHEN", "WHO", "FROM", "WHAT", "TARGET")


@click.command(
    epilog="""\b
Examples:
  roost audit
  roost audit --who ann@example.com
  roost audit --who token:ci --what submit --limit 1000 --json
\b
Next: `roost tokens` and `roost members` for who may do that. The server shows its last thousand changes.
"""
)
@click.option("--who", default="", metavar="NAME", help="Only of: root, token:NAME, or somebody's e-mail address.")
@click.option("--what", default="", metavar="KIND", help="Only of a kind: submit, cancel, drain, keep, setproject ...")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many at most.")
@json_option
def audit(who: str, what: str, limit: int, as_json: bool) -> None:
    """Say who changed what, newest first. For operators and admins of everything."""
    with connect() as client:
        found = client.audit(who=who, what=what, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = [(_when(each.at_ms), each.who, each.where or "-", each.what, each.target) for each in found]
    print_table(HEADER, rows)
    if not found:
        say("no such change is known")


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1_000))
