"""roost cancel, retry and delete: stop workloads or instances, run them again, or forget them."""

from collections.abc import Iterable

import click

from roost.cli.common.options import json_option, project_option
from roost.cli.common.output import echo_err, print_json
from roost.cli.common.session import connect
from roost.cli.common.targets import TARGET, Target, in_project
from roost.schema.work import WorkloadView


@click.command()
@click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME[.INDEX]...")
@project_option
@json_option
def cancel(targets: tuple[Target, ...], project: str, as_json: bool) -> None:
    """Stop workloads or single instances.

    Pending instances are cancelled at once. Running ones get SIGTERM, their grace period, then SIGKILL. Finished ones
    do not change.

    Examples:
      roost cancel train
      roost cancel train.3 train.4
      roost cancel train && roost wait train      until it has stopped
      roost cancel ci:3f9a1c                      all actions of a run of a pipeline

    Next: `roost show NAME` shows how it ended; `roost retry NAME` runs it again.
    """
    done: list[WorkloadView] = []
    with connect() as client:
        for target in targets:
            target = in_project(target, project)
            if target.run:
                from roost.cli.ci.runs import cancel_run, find_run

                stopped = cancel_run(client, find_run(client, target.project, target.run).workloads)
                if not stopped:
                    echo_err(f"all actions of {target} are finished")
            else:
                stopped = [client.workloads.cancel(target.project, target.name, target.index)]
            done += stopped
            if not as_json:
                echo_stopped(stopped, target.index)
    if as_json:
        print_json(done)


def echo_stopped(stopped: Iterable[WorkloadView], index: int | None = None) -> None:
    for workload in stopped:
        target = Target(workload.project, workload.name, index)
        echo_err(f"{target} is {'stopping' if workload.state == 'running' else workload.state}")


@click.command()
@click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME[.INDEX]...")
@click.option("--failed", is_flag=True, help="Only failed and timed-out instances.")
@project_option
@json_option
def retry(targets: tuple[Target, ...], failed: bool, project: str, as_json: bool) -> None:
    """Retry instances that failed, timed out or were cancelled; a named instance is retried whatever its result.

    Examples:
      roost retry train           all instances that did not succeed
      roost retry train.3         this one, whatever its result
      roost retry train --failed  only failed and timed-out instances, not cancelled ones
      roost retry train && roost wait train

    Next: `roost logs -f NAME` follows the new attempt.
    """
    done = []
    with connect() as client:
        for target in targets:
            target = in_project(target, project)
            done.append(client.workloads.retry(target.project, target.name, target.index, failed=failed))
            if not as_json:
                echo_err(f"{target} is pending for its next attempt")
    if as_json:
        print_json(done)


@click.command()
@click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME...")
@project_option
@json_option
def delete(targets: tuple[Target, ...], project: str, as_json: bool) -> None:
    """Delete finished workloads, with their logs and results, before their retention ends.

    Workloads that are not finished are refused: cancel them first. The history keeps the record of a deleted workload,
    with its states and results, until --history-retention ends. Logs are gone at once.

    Examples:
      roost delete train
      roost cancel train && roost wait train; roost delete train

    Next: `roost history NAME` shows what had that name.
    """
    done = []
    with connect() as client:
        for target in targets:
            target = in_project(target, project)
            if target.index is not None or target.run:
                raise click.UsageError(f"{target}: a whole workload is deleted; give its name without index or run")
            done.append(client.workloads.delete(target.project, target.name))
            if not as_json:
                echo_err(f"{target} is deleted")
    if as_json:
        print_json(done)
