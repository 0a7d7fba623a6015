"""roost maintenance: hold everything where it is, and let it go again."""

from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, clock, print_json, say
from roost.cli.session import connect, json_option

if TYPE_CHECKING:
    from roost.client.setting_types import Maintenance


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost maintenance
  roost maintenance on --reason "new switches" --for 2h
  roost maintenance off
\b
While it is on, nothing is placed, moved, updated or given up: nodes that fall silent are suspect, not lost.
Agents are heard, what ends is noted, and new work may be submitted: it waits. An agent that is cut off still
stops what must not run twice when its lease ends; that starts again afterwards.
\b
Next: `roost status`, `roost why NAME`.
""",
)
@json_option
@click.pass_context
def maintenance(ctx: click.Context, as_json: bool) -> None:
    """Say whether there is maintenance, begin it, end it."""
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        told = client.maintenance()
    if as_json:
        print_json(told)
    else:
        click.echo(words(told))


@maintenance.command(
    epilog="""\b
Examples:
  roost maintenance on --reason "new switches"            until `roost maintenance off`
  roost maintenance on --reason "new switches" --for 2h   it ends by itself
\b
To say it again changes the reason and the end.
\b
Next: `roost maintenance off`.
"""
)
@click.option("--reason", required=True, help="What for: whoever waits is told.")
@click.option("--for", "lasting", default=None, metavar="DURATION", help="It ends by itself after this, like 2h.")
@json_option
def on(reason: str, lasting: str | None, as_json: bool) -> None:
    """Hold everything where it is."""
    with connect() as client:
        told = client.begin_maintenance(reason, lasting)
    _tell(told, as_json)


@maintenance.command(
    epilog="""\b
Examples:
  roost maintenance off
\b
Every node gets a whole lease to be heard of again; then what was held up takes its course.
\b
Next: `roost nodes`, `roost ps`.
"""
)
@json_option
def off(as_json: bool) -> None:
    """Let everything take its course again."""
    with connect() as client:
        told = client.end_maintenance()
    _tell(told, as_json)


def words(told: "Maintenance") -> str:
    """Maintenance in one line."""
    if not told.on:
        return "there is no maintenance"
    since = f" since {ago(told.since_ms)}" if told.since_ms else ""
    until = f", until {clock(told.until_ms)}" if told.until_ms else ""
    return f"maintenance{since}{until}: {told.reason}"


def _tell(told: "Maintenance", as_json: bool) -> None:
    if as_json:
        print_json(told)
    else:
        say(words(told))
