"""roost schedules: jobs that run again and again, when they are due and how they went."""

import time
from typing import TYPE_CHECKING

import click

from roost.cli.output import print_json, print_table, say
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project

if TYPE_CHECKING:
    from roost.client.schedules import Schedule

HEADER = ("NAME", "CRON", "ZONE", "NEXT", "LAST", "STATE", "SAID")
NEXT_MAX = 10  # as many as a server tells


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost schedules                     when each is due, and how its last run went
  roost schedules --next 5            the coming five ticks of each
  roost schedules -p web --json
  roost schedules run nightly         once now, besides its ticks
\b
Times are those of this machine. A schedule is made by `schedule:` in a workload, and ended by `roost cancel NAME`.
\b
Next: `roost why NAME` says what it waits for, `roost logs RUN` what a run wrote.
""",
)
@click.option("-p", "--project", default="", help="Only of this project.")
@click.option("--next", "coming", type=click.IntRange(1, NEXT_MAX), default=1, show_default=True,
              help="How many coming ticks to show.")  # fmt: skip
@json_option
@click.pass_context
def schedules(ctx: click.Context, project: str, coming: int, as_json: bool) -> None:
    """List schedules: when they are due, how their last run went, what they could not do."""
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.schedules(project=project, coming=coming)
    if as_json:
        print_json(found)
        return
    if coming > 1:
        print_table(("NAME", "NEXT"), [row for each in found for row in _ticks(each)])
    else:
        print_table(HEADER, [_row(each) for each in found])
    if not found:
        say("there are no schedules; `schedule: '0 2 * * *'` in a workload makes one")


@schedules.command(
    epilog="""\b
Examples:
  roost schedules run nightly
  roost schedules run nightly && roost schedules
\b
Next: `roost logs -f RUN` follows what it writes.
"""
)
@click.argument("target", type=TARGET, metavar="NAME")
@project_option
@json_option
def run(target: Target, project: str, as_json: bool) -> None:
    """Let a schedule run once now, besides its ticks."""
    target = in_project(target, project)
    with connect() as client:
        made = client.run_schedule(target.project, target.name)
    if as_json:
        print_json(made)
    else:
        click.echo(str(Target(made.project, made.name)))


def _row(schedule: "Schedule") -> tuple[str, ...]:
    last = schedule.runs[0] if schedule.runs else None
    coming = "ended" if schedule.ended else _shown(schedule.next_ms[0]) if schedule.next_ms else "never"
    return (
        str(Target(schedule.project, schedule.name)),
        schedule.cron,
        schedule.zone,
        coming,
        _shown(last.tick_ms) if last else "-",
        last.state if last else "-",
        schedule.cause or "-",
    )


def _ticks(schedule: "Schedule") -> list[tuple[str, str]]:
    name = str(Target(schedule.project, schedule.name))
    return [(name, _shown(each)) for each in schedule.next_ms] or [(name, "ended" if schedule.ended else "never")]


def _shown(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_ms / 1_000))
