"""roost schedules: recurring jobs, their next ticks and last runs."""

import time

import click

from roost.cli.common.output import echo_err, print_json, print_table
from roost.cli.common.session import connect, json_option, listing, project_option
from roost.cli.common.targets import TARGET, Target, in_project
from roost.schema.schedules import ScheduleView

HEADER = ("NAME", "CRON", "ZONE", "NEXT", "LAST", "STATE", "PROBLEM")
NEXT_MAX = 10  # the limit of the server


@listing("schedules")
@click.option("-p", "--project", default="", help="Only of this project.")
@click.option("--next", "coming", type=click.IntRange(1, NEXT_MAX), default=1, show_default=True,
              help="Number of next ticks.")  # fmt: skip
@json_option
def schedules(project: str, coming: int, as_json: bool) -> None:
    """List schedules: next tick, last run, and problems.

    Examples:
      roost schedules                     next tick and last run of each
      roost schedules --next 5            the next five ticks of each
      roost schedules -p web --json
      roost schedules run nightly         once now, in addition to its ticks

    Times are those of this machine. A schedule is made by `schedule:` in a workload, and ended by `roost cancel NAME`.

    Next: `roost why NAME` for the next tick, `roost logs RUN` for the output of a run.
    """
    with connect() as client:
        found = client.schedules.list(project=project, coming=coming)
    if as_json:
        print_json(found)
        return
    if coming > 1:
        print_table(("NAME", "NEXT"), [row for schedule in found for row in _ticks(schedule)])
    else:
        print_table(HEADER, [_row(schedule) for schedule in found])
    if not found:
        echo_err("there are no schedules; `schedule: '0 2 * * *'` in a workload makes one")


@schedules.command()
@click.argument("target", type=TARGET, metavar="NAME")
@project_option
@json_option
def run(target: Target, project: str, as_json: bool) -> None:
    """Let a schedule run once now, in addition to its ticks.

    Examples:
      roost schedules run nightly
      roost schedules run nightly && roost schedules

    Next: `roost logs -f RUN` follows its output.
    """
    target = in_project(target, project)
    with connect() as client:
        made = client.schedules.run(target.project, target.name)
    if as_json:
        print_json(made)
    else:
        click.echo(str(Target(made.project, made.name)))


def _row(schedule: ScheduleView) -> tuple[str, ...]:
    last = schedule.runs[0] if schedule.runs else None
    coming = "ended" if schedule.ended else _shown(schedule.next_ms[0]) if schedule.next_ms else "never"
    return (
        str(Target(schedule.project, schedule.name)),
        schedule.cron,
        schedule.zone,
        coming,
        _shown(last.tick_ms) if last else "-",
        last.state if last else "-",
        schedule.message or "-",
    )


def _ticks(schedule: ScheduleView) -> list[tuple[str, str]]:
    name = str(Target(schedule.project, schedule.name))
    return [(name, _shown(next_m)) for next_m in schedule.next_ms] or [(name, "ended" if schedule.ended else "never")]


def _shown(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_ms / 1_000))
