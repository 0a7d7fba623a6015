"""roost schedules: recurring jobs, their next ticks and last runs."""

import click

from roost.cli.common.options import only_project_option, project_option
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output, listing
from roost.cli.common.targets import TARGET, Target, in_project
from roost.cli.work.show import PAUSED
from roost.client import Client
from roost.model.spec.cron import local_minute
from roost.schema.schedules import ScheduleView

HEADER = ("NAME", "CRON", "ZONE", "NEXT", "LAST", "STATE", "PROBLEM")
NEXT_MAX = 10  # the limit of the server
FOLDS_MS = (-3_600_000, -1_800_000, 1_800_000, 3_600_000)  # how far clocks are set back anywhere
MINUTE = len("2030-01-31 18:00")


@listing("schedules")
@only_project_option
@click.option("--next", "coming", type=click.IntRange(1, NEXT_MAX), default=1, show_default=True,
              help="Number of next ticks.")  # fmt: skip
@client_output
def schedules(client: Client, project: str, coming: int) -> Output:
    """List schedules: next tick, last run, and problems.

    Examples:
      roost schedules                     next tick and last run of each
      roost schedules --next 5            the next five ticks of each
      roost schedules -p web --json
      roost schedules run nightly         once now, in addition to its ticks

    Times are in the zone of each schedule, with the offset from UTC where the clocks are set back. A schedule is made
    by `schedule:` in a workload, and ended by `roost cancel NAME`.

    Next: `roost show NAME` for the last run, `roost logs RUN` for the output of a run.
    """
    found = client.schedules.list(project=project, coming=coming)
    empty = "there are no schedules; `schedule: '0 2 * * *'` in a workload makes one"
    if coming == 1:
        return listed(found, HEADER, _row, empty)
    ticks = [
        (str(Target(schedule.project, schedule.name)), schedule.zone, tick)
        for schedule in found
        for tick in _ticks(schedule)
    ]
    return listed(ticks, ("NAME", "ZONE", "NEXT"), lambda row: row, empty, value=found)


@schedules.command()
@click.argument("target", type=TARGET, metavar="NAME")
@project_option
@client_output
def run(client: Client, target: Target, project: str) -> Output:
    """Let a schedule run once now, in addition to its ticks.

    Examples:
      roost schedules run nightly
      roost schedules run nightly && roost schedules

    Next: `roost logs -f RUN` follows its output.
    """
    target = in_project(target, project)
    made = client.schedules.run(target.project, target.name)
    return Output(made, lambda: click.echo(str(Target(made.project, made.name))))


def _row(schedule: ScheduleView) -> tuple[str, ...]:
    last = schedule.runs[0] if schedule.runs else None
    tick, state = (_minute(schedule.zone, last.tick_ms), last.state) if last else ("-", "-")
    name = str(Target(schedule.project, schedule.name))
    problem = "; ".join(filter(None, (PAUSED if schedule.paused else "", schedule.message)))
    return name, schedule.cron, schedule.zone, _ticks(schedule)[0], tick, state, problem or "-"


def _ticks(schedule: ScheduleView) -> list[str]:
    ticks = [_minute(schedule.zone, tick) for tick in schedule.next_ms]
    return ticks or ["ended" if schedule.ended else "never"]


def _minute(zone: str, tick_ms: int) -> str:
    """A tick in the zone of its row, with the offset from UTC where clocks show that minute twice."""
    minute, *others = (local_minute(zone, tick_ms + shift) for shift in (0, *FOLDS_MS))
    return minute if minute[:MINUTE] in [other[:MINUTE] for other in others] else minute[:MINUTE]
