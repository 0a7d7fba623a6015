"""roost wait: until workloads are finished, started, running or ready; all of them, or any."""

from typing import Literal

import click

from roost.cli.common.exit_codes import DONE, FAILED
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, echo_err
from roost.cli.common.rollout_progress import timeout_option
from roost.cli.common.session import connect, json_output
from roost.cli.common.targets import TARGET, Target, in_project, whole_workload
from roost.client import Client
from roost.model.spec.units import duration_ms
from roost.schema.work import WorkloadView


@click.command()
@click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME...")
@timeout_option
@click.option(
    "--for", "until", type=click.Choice(["finished", "started", "running", "ready"]), default="finished",
    show_default=True, help="started: one instance has started; running: all run; ready: all replicas are ready.",
)  # fmt: skip
@click.option("--all/--any", "all_of", default=True, help="Wait for all of them, or for the first. [default: all]")
@project_option
@json_output
def wait(
    targets: tuple[Target, ...], timeout: str | None, until: Literal["finished", "started", "running", "ready"],
    all_of: bool, project: str,
) -> Output:  # fmt: skip
    """Wait until workloads are finished, started, running or ready.

    It does not poll: the server streams changes. With --any, finished workloads are listed, the first one first. A
    service is ready when all replicas of its current version are. The wait ends when the service ends or its rollout
    fails. A schedule is finished when it is cancelled; name one of its runs to wait for that run.

    Examples:
      roost wait train
      roost wait build test deploy --timeout 10m
      roost wait search-1 search-2 search-3 --any       until the first is finished
      roost wait ci:3f9a1c                              all actions of a run of a pipeline
      roost wait web --for ready && curl http://localhost:8080

    Exit code: 0 all succeeded (or run, or are ready), 1 some did not, 124 time limit. With --any that of the first one.
    Next: `roost show NAME` for details of a failure.
    """
    timeout_s = None if timeout is None else duration_ms(timeout, "--timeout") / 1_000
    with connect() as client:
        found = [key for target in targets for key in _keys(client, whole_workload(in_project(target, project)))]
        keys = list(dict.fromkeys(found))
        if until == "ready":
            standings = client.workloads.wait_ready(keys, timeout_s, any_of=not all_of)
            done = [status.workload for status in standings]
            bad = [f"is not ready: {status.message}" if not status.well else "" for status in standings]
        else:
            done = client.workloads.wait(keys, until, timeout_s, any_of=not all_of)
            bad = [_problem(workload, until) for workload in done]
    first = len(done) if all_of else 1

    def show() -> None:
        if not all_of:
            click.echo(str(Target(done[0].project, done[0].name)))
        for workload, problem in zip(done[:first], bad, strict=False):
            if problem:
                echo_err(f"{Target(workload.project, workload.name)} {problem}")

    return Output(done, show, FAILED if any(bad[:first]) else DONE)


def _problem(workload: WorkloadView, until: str) -> str:
    if workload.state in ("succeeded", "skipped") or (workload.state == "running" and until != "finished"):
        return ""
    return f"is {workload.state}" + (f": {workload.message}" if workload.message else "")


def _keys(client: Client, target: Target) -> list[tuple[str, str]]:
    if not target.run:
        return [(target.project, target.name)]
    from roost.cli.ci.runs import find_run

    run = find_run(client, target.project, target.run)
    return [(workload.project, workload.name) for workload in run.workloads]
