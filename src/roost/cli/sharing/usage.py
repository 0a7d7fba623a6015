"""roost usage: what projects, workloads and days had and used."""

import click

from roost.cli.common.as_of import period_options
from roost.cli.common.options import only_project_option
from roost.cli.common.output import Output, echo_err, print_table
from roost.cli.common.session import client_output
from roost.client import Client
from roost.model.spec.units import show_size
from roost.schema.projects import UsageRow

HEADER = ("RUNS", "CORE-H", "USED", "GIB-H", "USED", "GPU-H", "READ", "WRITTEN")
KIB_S_PER_GIB_H = (1 << 20) * 3_600
MS_PER_H = 3_600_000


@click.command()
@only_project_option
@click.option("--by", type=click.Choice(("project", "workload", "day")), default="project", show_default=True,
              help="What a line is about.")  # fmt: skip
@period_options
@client_output
def usage(client: Client, project: str, by: str, since: str, until: str) -> Output:
    """Sum up what work had allocated, and how much of it was used.

    CORE-H, GIB-H and GPU-H are hours of cores, GiB of memory and GPUs as allocated. USED is what was measured of the
    column before it, of memory at the peak of each run; `-`: nothing was. Use of GPUs is not measured. Days are whole
    and in UTC. Retries and lost attempts count; what still runs counts up to now.

    Examples:
      roost usage                           by project, as far back as there is any
      roost usage --by workload -p web --since 7d
      roost usage --by day --since 2026-01-01 --until 2026-02-01
      roost usage --by workload --json

    Next: `roost show NAME` for what a single run used.
    """
    rows = client.usage.list(project=project, by=by, since=since, until=until)

    def show() -> None:
        print_table((by.upper(), *HEADER), [(_name(row, by), *_cells(row)) for row in rows])
        if not rows:
            echo_err("nothing has run in this time; `roost ps` lists pending workloads")
        had, measured = sum(row.cpu_ms for row in rows), sum(row.cpu_measured_ms for row in rows)
        if rows and had > measured:
            echo_err(f"{measured * 100 // had}% of these core-hours were measured; the rest still runs, was lost with "
                     "its node, or its node cannot measure it")  # fmt: skip

    return Output(rows, show)


def _name(row: UsageRow, by: str) -> str:
    if by == "day":
        return row.day
    return f"{row.project}/{row.workload or '(others)'}" if by == "workload" else row.project


def _cells(row: UsageRow) -> tuple[str, ...]:
    return (
        f"{row.attempts + row.running:,}",
        hours(row.cpu_ms, MS_PER_H),
        used(row.cpu_used_ms, row.cpu_measured_ms, MS_PER_H),
        hours(row.memory_kib_s, KIB_S_PER_GIB_H),
        used(row.memory_used_kib_s, row.memory_measured_kib_s, KIB_S_PER_GIB_H),
        hours(row.gpu_ms, MS_PER_H),
        show_size(row.io_read),
        show_size(row.io_written),
    )


def hours(amount: int, unit: int) -> str:
    """Two digits behind the point for little, none for much."""
    found = amount / unit
    if 0 < found < 0.01:
        return "<0.01"
    return f"{found:,.0f}" if found >= 100 else f"{found:.2f}" if amount else "0"


def used(amount: int, measured: int, unit: int) -> str:
    """A dash if none of it was measured."""
    return hours(amount, unit) if amount or measured else "-"
