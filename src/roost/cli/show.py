"""roost show: one workload or one instance, with its story."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, amount, clock, plain, print_json, print_table, say, took
from roost.cli.past import at_option, day_and_time, settle
from roost.cli.ps import progress, state_words
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project

if TYPE_CHECKING:
    from roost.client import Client
    from roost.client.types import Instance, Workload

STORIES_MAX = 100  # told at once: more cannot be read, and each is a request
HEADER = ("INSTANCE", "STATE", "NODE", "ATTEMPT", "EXIT", "TOOK", "CAUSE")


@click.command(
    epilog="""\b
Examples:
  roost show train            the workload, its instances, and its story if it has one instance
  roost show train.7          one instance: every attempt, with times and causes
  roost show train --story    every instance with its whole story; also of one that is long over
  roost show train --at 2h    as it was two hours ago
  roost show train --json
\b
Next: `roost logs NAME`, `roost why NAME`, `roost retry NAME`.
"""
)
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@click.option("--story", is_flag=True, help="The whole story of each instance; also of what is only in the history.")
@at_option
@json_option
def show(target: Target, project: str, story: bool, at: str, as_json: bool) -> None:
    """Show one workload or one instance, with its story."""
    target = in_project(target, project)
    with connect() as client:
        at = settle(client, at)
        if story:
            _print_stories(_stories(client, target, at), as_json)
            return
        workload = None if target.index is not None else client.workload(target.project, target.name, at=at)
        single = target.index if workload is None else 0 if workload.count == 1 else None
        instance = None if single is None else client.instance(target.project, target.name, single, at=at)
    if as_json:
        print_json(workload or instance)
        return
    if workload is not None:
        _show_workload(workload)
    if workload is not None and instance is not None:
        click.echo()
    if instance is not None:
        _show_instance(instance)


def _stories(client: "Client", target: Target, at: str) -> "list[Instance]":
    """Each instance with its story: of the workload that is there, or else of the last one of that name."""
    from roost.client.errors import ApiError  # noqa: PLC0415

    project, name = target.project, target.name
    try:
        if target.index is not None:
            return [client.instance(project, name, target.index, at=at)]
        begun = [each.index for each in client.instances(project, name, at=at) if each.attempt]
        if len(begun) > STORIES_MAX:
            say(f"the first {STORIES_MAX} of {len(begun)} that began; name one for its own: {target}.INDEX")
        return [client.instance(project, name, index, at=at) for index in begun[:STORIES_MAX]]
    except ApiError as error:
        if error.status != 404 or at:
            raise
        known = error
    try:
        over = client.lives(project, name, limit=1)[0]
    except ApiError:
        raise known from None
    say(f"{target} is over since {day_and_time(over.finished_ms)}; this is from the history")
    found = client.past_instances(project, name, over.serial, limit=None if target.index is not None else STORIES_MAX)
    return [each for each in found if target.index in (None, each.index)]


def _print_stories(instances: "list[Instance]", as_json: bool) -> None:
    if as_json:
        print_json(instances)
        return
    for number, instance in enumerate(instances):
        if number:
            click.echo()
        _show_instance(instance)
        if instance.decision is not None:
            others = ", ".join(f"{each.node} {each.score:.3f}" for each in instance.decision.candidates)
            click.echo(f"Decision:   {instance.decision.strategy}, {instance.decision.eligible} eligible: {others}")
    if not instances:
        say("none of it ever began; `roost why NAME` says why it waits")


def exit_words(instance: "Instance") -> str:
    """How the process ended: its exit code, or the signal that ended it."""
    if instance.signal is not None:
        return f"signal {instance.signal}"
    return "-" if instance.exit_code is None else str(instance.exit_code)


def _show_workload(workload: "Workload") -> None:
    needs = ", ".join(f"{plain(name)} {amount(name, value)}" for name, value in workload.needs.items()) or "nothing"
    click.echo(f"Workload:   {Target(workload.project, workload.name)} ({workload.kind}, project {workload.project})")
    click.echo(f"State:      {state_words(workload)}" + (f": {workload.cause}" if workload.cause else ""))
    click.echo(f"Instances:  {progress(workload)}")
    if workload.version > 1:
        click.echo(f"Version:    {workload.version}, {workload.change} {ago(workload.changed_ms)}")
    if workload.rollout is not None:
        click.echo(f"Update:     {update_words(workload)}")
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


def update_words(workload: "Workload") -> str:
    """How the change to the present version goes, or went."""
    rollout = workload.rollout
    assert rollout is not None
    available = f"{rollout.done} of {workload.count} available"
    failed = f", ended {rollout.failures} times by themselves" if rollout.failures else ""
    if rollout.state == "failed":
        return f"failed: {rollout.cause}"
    if rollout.state == "waiting":
        return f"{available}{failed}; the others wait for `roost promote` or `roost rollback`"
    return "done" if rollout.state == "done" else f"rolling, {available}{failed}"


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
    cells = (name, _instance_state(instance), instance.node or "-", attempt, exit_words(instance), duration)
    return *cells, instance.cause or "-"


def _instance_state(instance: "Instance") -> str:
    """The state, and of a replica what it lacks."""
    return "crash loop" if instance.crash_loop else f"{instance.state}, sick" if instance.sick else instance.state


def _show_instance(instance: "Instance") -> None:
    name = Target(instance.project, instance.name, instance.index)
    click.echo(f"Instance:   {name} is {instance.state}" + (f" on {instance.node}" if instance.node else ""))
    click.echo(f"Cause:      {instance.cause or '-'}")
    if instance.version > 1 or instance.ready or instance.sick or instance.crash_loop:
        click.echo(f"Version:    {instance.version}" + _readiness(instance))
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
        when = _clock_of(instance)
        print_table(
            ("TIME", "STATE", "CAUSE"), [(when(line.at_ms), line.state, line.cause) for line in instance.story]
        )  # fmt: skip


def _readiness(instance: "Instance") -> str:
    if instance.crash_loop:
        return f", not ready: it ended {instance.failures} times in a row"
    return ", ready" if instance.ready else f", not ready: {instance.sick}" if instance.sick else ""


def _clock_of(instance: "Instance") -> Callable[[int], str]:
    """The time of day for a story of today, else with its day."""
    today = day_and_time(time.time_ns() // 1_000_000)[:10]
    return clock if day_and_time(instance.story[0].at_ms)[:10] == today else day_and_time
