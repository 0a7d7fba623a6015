"""roost show: one workload or one instance, with its story."""

from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, amount, clock, plain, print_json, print_table, say, took
from roost.cli.ps import progress
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project

if TYPE_CHECKING:
    from roost.client.types import Instance, Workload

HEADER = ("INSTANCE", "STATE", "NODE", "ATTEMPT", "EXIT", "TOOK", "CAUSE")


@click.command(
    epilog="""\b
Examples:
  roost show train            the workload, its instances, and its story if it has one instance
  roost show train.7          one instance: every attempt, with times and causes
  roost show train --json
\b
Next: `roost logs NAME`, `roost why NAME`, `roost retry NAME`.
"""
)
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@json_option
def show(target: Target, project: str, as_json: bool) -> None:
    """Show one workload or one instance, with its story."""
    target = in_project(target, project)
    with connect() as client:
        workload = None if target.index is not None else client.workload(target.project, target.name)
        single = target.index if workload is None else 0 if workload.count == 1 else None
        instance = None if single is None else client.instance(target.project, target.name, single)
    if as_json:
        print_json(workload or instance)
        return
    if workload is not None:
        _show_workload(workload)
    if workload is not None and instance is not None:
        click.echo()
    if instance is not None:
        _show_instance(instance)


def exit_words(instance: "Instance") -> str:
    """How the process ended: its exit code, or the signal that ended it."""
    if instance.signal is not None:
        return f"signal {instance.signal}"
    return "-" if instance.exit_code is None else str(instance.exit_code)


def _show_workload(workload: "Workload") -> None:
    needs = ", ".join(f"{plain(name)} {amount(name, value)}" for name, value in workload.needs.items()) or "nothing"
    click.echo(f"Workload:   {Target(workload.project, workload.name)} ({workload.kind}, project {workload.project})")
    click.echo(f"State:      {workload.state}" + (f": {workload.cause}" if workload.cause else ""))
    click.echo(f"Instances:  {progress(workload)}")
    click.echo(f"Needs:      {needs}" + (" each" if workload.count > 1 else ""))
    click.echo(f"Priority:   {workload.priority}")
    click.echo(f"Submitted:  {ago(workload.submitted_ms)}")
    if workload.finished_ms:
        click.echo(
            f"Finished:   {ago(workload.finished_ms)}, after {took(workload.submitted_ms, workload.finished_ms)}"
        )
    for name, value in _work(workload):
        click.echo(f"{name + ':':<12}{value}")
    if workload.count > 1:
        click.echo()
        print_table(HEADER, [_row(instance) for instance in workload.instances])
        if workload.count > len(workload.instances):
            say(f"{workload.count - len(workload.instances)} more; name one (NAME.INDEX), or use --json")


def _work(workload: "Workload") -> list[tuple[str, str]]:
    document = workload.document
    command = document.get("command")
    if isinstance(command, list):
        import shlex  # noqa: PLC0415  (only here)

        return [("Command", shlex.join(command))]
    if command:
        return [("Command", str(command))]
    return [(f"Step {number}", step["run"]) for number, step in enumerate(document.get("steps") or (), start=1)]


def _row(instance: "Instance") -> tuple[str, ...]:
    name = str(Target(instance.project, instance.name, instance.index))
    duration = took(instance.started_ms, instance.finished_ms)
    attempt = str(instance.attempt) if instance.attempt else "-"
    return name, instance.state, instance.node or "-", attempt, exit_words(instance), duration, instance.cause or "-"


def _show_instance(instance: "Instance") -> None:
    name = Target(instance.project, instance.name, instance.index)
    click.echo(f"Instance:   {name} is {instance.state}" + (f" on {instance.node}" if instance.node else ""))
    click.echo(f"Cause:      {instance.cause or '-'}")
    click.echo(f"Attempt:    {instance.attempt or '-'}")
    if instance.started_ms:
        click.echo(f"Ran:        {took(instance.started_ms, instance.finished_ms)}, started {ago(instance.started_ms)}")
    if instance.devices:
        click.echo(f"GPUs:       {', '.join(map(str, instance.devices))}")
    if instance.ports:
        click.echo("Ports:      " + ", ".join(f"{name} {port}" for name, port in instance.ports.items()))
    if instance.exit_code is not None or instance.signal is not None:
        click.echo(f"Ended:      {exit_words(instance)}")
    if instance.story:
        click.echo()
        print_table(
            ("TIME", "STATE", "CAUSE"), [(clock(line.at_ms), line.state, line.cause) for line in instance.story]
        )
