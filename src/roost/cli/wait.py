"""roost wait: until workloads are finished, started, running or ready; all of them, or any."""

from typing import TYPE_CHECKING, Literal

import click

from roost.cli.outcome import DONE, FAILED
from roost.cli.output import print_json, say
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project
from roost.model.units import duration_ms

if TYPE_CHECKING:
    from roost.client import Client

RUN_PREFIX = "ci:"  # no workload has a colon in its name


@click.command(
    epilog="""\b
Examples:
  roost wait train
  roost wait build test deploy --timeout 10m
  roost wait search-1 search-2 search-3 --any       until the first of them is over
  roost wait ci:3f9a1c                              all actions of a run of a pipeline
  roost wait web --for ready && curl http://localhost:8080
\b
Exit code: 0 all succeeded (or run, or are ready), 1 some did not, 124 not in time. With --any that of the first one.
Next: `roost show NAME` for what failed.
"""
)
@click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME...")
@click.option("--timeout", metavar="DURATION", help="How long to wait, like 30s or 10m. [default: for ever]")
@click.option(
    "--for", "until", type=click.Choice(["finished", "started", "running", "ready"]), default="finished",
    show_default=True, help="started: one instance of it has; running: all are; ready: all of a service are.",
)  # fmt: skip
@click.option("--all/--any", "all_of", default=True, help="Until all of them are, or one of them is. [default: all]")
@project_option
@json_option
@click.pass_context
def wait(
    ctx: click.Context, targets: tuple[Target, ...], timeout: str | None,
    until: Literal["finished", "started", "running", "ready"], all_of: bool, project: str, as_json: bool,
) -> None:  # fmt: skip
    """Wait until workloads are finished, or have started, or until all their instances run, or are ready.

    Nothing is asked again and again: the server tells when something changes. With --any the workloads that are
    finished are told, the one that ended first in front. A service is ready when all its replicas are, at its present
    version; it is given up when it has ended, or when its change to that version failed.
    """
    if any(target.index is not None for target in targets):
        raise click.UsageError("wait is for whole workloads; leave the index away")
    timeout_s = None if timeout is None else duration_ms(timeout, "--timeout") / 1_000
    with connect() as client:
        keys = [key for target in targets for key in _keys(client, in_project(target, project))]
        if until == "ready":
            ctx.exit(_wait_ready(client, list(dict.fromkeys(keys)), timeout_s, all_of=all_of, as_json=as_json))
        done = client.wait(list(dict.fromkeys(keys)), until, timeout_s, any_of=not all_of)
    if as_json:
        print_json(done)
    wanted = ("succeeded",) if until == "finished" else ("succeeded", "running")
    bad = [workload for workload in (done if all_of else done[:1]) if workload.state not in wanted]
    if not as_json:
        if not all_of:
            click.echo(str(Target(done[0].project, done[0].name)))
        for workload in bad:
            say(
                f"{Target(workload.project, workload.name)} is {workload.state}"
                + (f": {workload.cause}" if workload.cause else "")
            )
    ctx.exit(FAILED if bad else 0)


def _wait_ready(
    client: "Client", keys: list[tuple[str, str]], timeout_s: float | None, *, all_of: bool, as_json: bool
) -> int:
    """Wait for services and tell how they stand; the exit code."""
    found = client.wait_ready(keys, timeout_s, any_of=not all_of)
    told = found if all_of else found[:1]
    if as_json:
        print_json([standing.workload for standing in found])
    elif not all_of:
        click.echo(str(Target(told[0].workload.project, told[0].workload.name)))
    for standing in told:
        if not standing.well and not as_json:
            say(f"{Target(standing.workload.project, standing.workload.name)} is not ready: {standing.words}")
    return DONE if all(standing.well for standing in told) else FAILED


def _keys(client: "Client", target: Target) -> list[tuple[str, str]]:
    """The workload of that name, or all actions of a run."""
    if not target.name.startswith(RUN_PREFIX):
        return [(target.project, target.name)]
    from roost.cli.ci_runs import find_run  # noqa: PLC0415  (few wait for one)

    run = find_run(client, target.project, target.name.removeprefix(RUN_PREFIX))
    return [(each.project, each.name) for each in run.workloads]
