"""roost wait: until workloads are finished, or running."""

from typing import Literal

import click

from roost.cli.outcome import FAILED
from roost.cli.output import print_json, say
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project
from roost.model.units import duration_ms


@click.command(
    epilog="""\b
Examples:
  roost wait train
  roost wait build test deploy --timeout 10m
  roost wait web --for running && curl http://localhost:8080
\b
Exit code: 0 all succeeded (or run), 1 some did not, 124 not in time.
Next: `roost show NAME` for what failed.
"""
)
@click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME...")
@click.option("--timeout", metavar="DURATION", help="How long to wait, like 30s or 10m. [default: for ever]")
@click.option("--for", "until", type=click.Choice(["finished", "running"]), default="finished", show_default=True)
@project_option
@json_option
@click.pass_context
def wait(
    ctx: click.Context, targets: tuple[Target, ...], timeout: str | None, until: Literal["finished", "running"],
    project: str, as_json: bool,
) -> None:  # fmt: skip
    """Wait until workloads are finished, or until all their instances run."""
    if any(target.index is not None for target in targets):
        raise click.UsageError("wait is for whole workloads; leave the index away")
    timeout_s = None if timeout is None else duration_ms(timeout, "--timeout") / 1_000
    found = [in_project(target, project) for target in targets]
    with connect() as client:
        done = client.wait([(target.project, target.name) for target in found], until, timeout_s)
    if as_json:
        print_json(done)
    wanted = ("succeeded",) if until == "finished" else ("succeeded", "running")
    bad = [workload for workload in done if workload.state not in wanted]
    if not as_json:
        for workload in bad:
            say(
                f"{Target(workload.project, workload.name)} is {workload.state}"
                + (f": {workload.cause}" if workload.cause else "")
            )
    ctx.exit(FAILED if bad else 0)
