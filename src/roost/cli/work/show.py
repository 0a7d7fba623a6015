"""roost ps and show: list workloads; show one workload or one instance, with its story."""

import shlex

import click
import msgspec

from roost.cli.common.as_of import at_option, settle
from roost.cli.common.format import ago, amount, clock_since, day_and_time, from_now, ordered, plain, took
from roost.cli.common.kept_files import files_text
from roost.cli.common.options import only_project_option, project_option
from roost.cli.common.output import Output, echo_err, listed, print_fields, print_table
from roost.cli.common.session import client_output, wants_json
from roost.cli.common.targets import TARGET, Target, in_project
from roost.cli.common.usage import run_usage_text
from roost.cli.work.vm import format_power
from roost.client import Client
from roost.client.errors import ApiError
from roost.model.spec.cron import local_minute
from roost.model.states import WORST_FIRST, InstanceState
from roost.schema.history import OverView
from roost.schema.schedules import RunView, ScheduleView
from roost.schema.work import InstanceDetail, InstanceView, WorkloadDetail, WorkloadView

SHOWN = 100  # instances of a workload, and workloads, in a table
INSTANCE_STATES = (*map(str, WORST_FIRST), "lost", "running", "stopping", "starting", "placed", "queued", "succeeded")
PAUSED = "paused by maintenance"
RESULT_SHOWN_MAX = 66  # characters: with the name of the field a line of 80 columns
STORIES_MAX = 100  # shown at once: each is a request
HEADER = ("INSTANCE", "STATE", "NODE", "ATTEMPT", "EXIT", "RAN", "CAUSE")
LIVE = ("scheduled", "queued", "running", "stopping")
ENDED = ("succeeded", "failed", "timed_out", "cancelled", "expired", "rejected", "skipped")
WORKLOADS_HEADER = ("NAME", "KIND", "STATE", "INSTANCES", "SUBMITTED", "FINISHED")


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@click.option(
    "--story", is_flag=True, help="All transitions of each instance; also of workloads that only the history has."
)
@click.option("--state", type=click.Choice(INSTANCE_STATES), metavar="STATE",
              help="Only instances in this state, like failed or running.")  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1), help=f"How many instances at most. [default: {SHOWN}; with --json all]"
)
@at_option
@client_output
def show(
    client: Client, target: Target, project: str, story: bool, state: str | None, limit: int | None, at: str
) -> Output:
    """Show one workload or one instance, with its story.

    Examples:
      roost show train            the workload, its instances, and its story if it has one instance
      roost show train --state failed --limit 1000
      roost show ci:3f9a1c        a run of a pipeline
      roost show train.7          one instance: every attempt, with times and causes
      roost show train --story    every instance with all transitions; also of old workloads
      roost show train --at 2h    as it was two hours ago
      roost show train --json

    Instances that failed are listed first. With --json, `more` is the number of instances
    that are left out.

    Next: `roost logs NAME`, `roost why NAME`, `roost retry NAME`.
    """
    target = in_project(target, project)
    if target.run:
        from roost.cli.ci.commands import run_output

        return run_output(client, target)
    at = settle(client, at)
    if story:
        stories = _stories(client, target, at)
        return Output(stories, lambda: _show_stories(stories))
    if target.index is not None:
        instance = client.instances.get(target.project, target.name, target.index, at=at)
        return Output(instance, lambda: _show_instance(instance))
    workload = client.workloads.get(target.project, target.name, at=at)
    has_one = workload.count == 1 and workload.schedule is None
    only = client.instances.get(target.project, target.name, 0, at=at) if has_one else None
    limit = limit or (workload.count if wants_json() else SHOWN)
    workload = msgspec.structs.replace(workload, instances=_worst_first(client, workload, state, limit, at))
    total = workload.counts.get(InstanceState(state), 0) if state else sum(workload.counts.values())
    more = max(0, total - len(workload.instances))
    return Output({**msgspec.structs.asdict(workload), "more": more}, lambda: _show_workload(workload, only, more))


def _worst_first(client: Client, workload: WorkloadView, only: str | None, limit: int, at: str) -> list[InstanceView]:
    """Instances by state, failed ones first; `only`: of this state."""
    project, name = workload.project, workload.name
    if not only and limit >= workload.count:
        every = client.instances.list(project, name, at=at)
        return sorted(every, key=lambda instance: INSTANCE_STATES.index(instance.state))
    found: dict[int, InstanceView] = {}  # by index: one may change its state between two requests
    for state in (only,) if only else INSTANCE_STATES:
        left = limit - len(found)
        if left > 0 and workload.counts.get(InstanceState(state)):
            page = client.instances.list(project, name, state=state, limit=left, at=at)
            found |= {instance.index: instance for instance in page}
    return list(found.values())


def _stories(client: Client, target: Target, at: str) -> list[InstanceDetail]:
    """Each instance with its story: of the workload that is there, or else of the last one of that name."""
    project, name = target.project, target.name
    try:
        if target.index is not None:
            return [client.instances.get(project, name, target.index, at=at)]
        begun = [instance.index for instance in client.instances.list(project, name, at=at) if instance.attempt]
        if len(begun) > STORIES_MAX:
            echo_err(f"the first {STORIES_MAX} of {len(begun)} that began; name one for its own: {target}.INDEX")
        return [client.instances.get(project, name, index, at=at) for index in begun[:STORIES_MAX]]
    except ApiError as error:
        if error.status != 404 or at:
            raise
        api_error = error
    try:
        over = client.history.get(project, name, limit=1)[0]
    except ApiError:
        raise api_error from None
    echo_err(f"{target} is finished since {day_and_time(over.finished_ms)}; this is from the history")
    limit = None if target.index is not None else STORIES_MAX
    found = client.history.instances(project, name, over.serial, limit=limit)
    return [instance for instance in found if target.index in (None, instance.index)]


def _show_stories(instances: list[InstanceDetail]) -> None:
    for number, instance in enumerate(instances):
        if number:
            click.echo()
        _show_instance(instance)
        if instance.image:
            click.echo(f"Image:      {instance.image}")
        if instance.decision is not None:
            others = ", ".join(
                f"{candidate.node} {candidate.score:.3f}{' with the image' * candidate.has_image}"
                for candidate in instance.decision.candidates
            )
            click.echo(f"Decision:   {instance.decision.strategy}, {instance.decision.eligible} eligible: {others}")
    if not instances:
        echo_err("no instance has started; `roost why NAME` shows why")


def format_exit(instance: InstanceView) -> str:
    if instance.signal is not None:
        return f"signal {instance.signal}"
    return "-" if instance.exit_code is None else str(instance.exit_code)


def _show_workload(workload: WorkloadDetail, only: InstanceDetail | None, more: int) -> None:
    needs = ", ".join(f"{plain(name)} {amount(name, value)}" for name, value in ordered(workload.needs)) or "nothing"
    duration = took(workload.submitted_ms, workload.finished_ms)
    fields = {
        "Workload": f"{Target(workload.project, workload.name)} ({workload.kind}, project {workload.project})",
        "State": format_state(workload) + (f": {workload.message}" if workload.message else ""),
        "Template": _template(workload),
        **_schedule_fields(workload.schedule),
        "Instances": progress(workload),
        "Version": f"{workload.version}, {workload.change} {ago(workload.changed_ms)}" if workload.version > 1 else "",
        "Update": format_update(workload) if _has_update(workload) else "",
        "Needs": needs + (" each" if workload.count > 1 else ""),
        "Priority": str(workload.priority),
        "Submitted": ago(workload.submitted_ms),
        "Finished": f"{ago(workload.finished_ms)}, {duration} after submission" if workload.finished_ms else "",
    }
    command, steps = workload.document.get("command"), workload.document.get("steps")
    if command:
        fields["Command"] = shlex.join(command) if isinstance(command, list) else str(command)
    else:
        lines = [step if isinstance(step, str) else step["run"] for step in steps or ()]
        fields |= {f"Step {number}": line for number, line in enumerate(lines, start=1)}
    print_fields(fields, 12)
    if only is not None:
        click.echo()
        _show_instance(only)
    if workload.count > 1 and workload.schedule is None:
        click.echo()
        print_table(HEADER, [_row(instance) for instance in workload.instances])
        if more:
            echo_err(f"{more:,} more; --limit and --json list them, --state STATE only some, NAME.INDEX shows one")


def _template(workload: WorkloadDetail) -> str:
    """NAME@VERSION and the values that were given."""
    values = workload.document.get("template", {}).get("parameters", {})
    given = ", ".join(f"{name}={value!s:.60}" for name, value in values.items())
    return workload.template + (f" ({given})" if given else "")


def _schedule_fields(schedule: ScheduleView | None) -> dict[str, str]:
    if schedule is None:
        return {}
    coming = [f"{local_minute(schedule.zone, tick)}, in {from_now(tick)}" for tick in schedule.next_ms]
    return {
        "Schedule": f"{schedule.cron}, zone {schedule.zone}" + (f" ({PAUSED})" if schedule.paused else ""),
        "Next run": ", ".join(coming) or ("ended" if schedule.ended else "never"),
        "Last run": _last_run(schedule.zone, schedule.runs[0]) if schedule.runs else "none",
    }


def _last_run(zone: str, run: RunView) -> str:
    cause = f" ({run.message})" if run.message else ""
    return f"{run.name} is {run.state}{cause}, tick {local_minute(zone, run.tick_ms)}"


def _has_update(workload: WorkloadView) -> bool:
    """The first version is only of interest if it has failed."""
    return workload.rollout is not None and (workload.version > 1 or workload.rollout.state == "failed")


def format_update(workload: WorkloadView) -> str:
    rollout = workload.rollout
    assert rollout is not None
    available = f"{rollout.done} of {workload.count} available"
    failed = f", ended {rollout.failures} times by themselves" if rollout.failures else ""
    if rollout.state == "failed":
        return f"failed: {rollout.message}"
    if rollout.state == "waiting":
        return f"{available}{failed}; the others wait for `roost promote` or `roost rollback`"
    return "done" if rollout.state == "done" else f"rolling, {available}{failed}"


def _row(instance: InstanceView) -> tuple[str, ...]:
    name = str(Target(instance.project, instance.name, instance.index))
    duration = took(instance.started_ms, instance.ran_until_ms)
    attempt = str(instance.attempt) if instance.attempt else "-"
    cells = (name, _instance_state(instance), instance.node or "-", attempt, format_exit(instance), duration)
    return *cells, instance.message or "-"


def _instance_state(instance: InstanceView) -> str:
    if instance.crash_loop:
        return "crash loop"
    return f"{instance.state}, unhealthy" if instance.health_message else instance.state


def _show_instance(instance: InstanceDetail) -> None:
    duration = took(instance.started_ms, instance.ran_until_ms)
    is_replica = instance.version > 1 or instance.ready or instance.health_message or instance.crash_loop
    fields = {
        "Instance": f"{Target(instance.project, instance.name, instance.index)} is {instance.state}"
                    + (f" on {instance.node}" if instance.node else ""),
        "Cause": instance.message or "-",
        "Power": format_power(instance.power) if instance.power is not None else "",
        "Version": f"{instance.version}{_readiness(instance)}" if is_replica else "",
        "Attempt": str(instance.attempt or "-"),
        "Ran": f"{duration}, started {ago(instance.started_ms)}" if instance.started_ms else "",
        "GPUs": ", ".join(map(str, instance.devices)),
        "Ports": ", ".join(f"{name} {port}" for name, port in instance.ports.items()),
        "Limits": f"{' and '.join(instance.unenforced)} not enforced on this node" if instance.unenforced else "",
        "Ended": "" if instance.exit_code is None and instance.signal is None else format_exit(instance),
        "Used": run_usage_text(instance.usage),
        "Result": _result(instance),
        "Outputs": format_outputs(instance),
        "Not passed": "\n".join(f"{item.variable} ({item.workload}): {item.message}" for item in instance.not_passed),
    }  # fmt: skip
    print_fields(fields, 12)
    if instance.story:
        click.echo()
        when = clock_since(instance.story[0].at_ms)
        rows = [(when(line.at_ms), line.state, line.message) for line in instance.story]
        print_table(("TIME", "STATE", "CAUSE"), rows)


def _result(instance: InstanceView) -> str:
    """The JSON itself if it fits into a line."""
    result = instance.result
    if result is None or result.message:
        return result.message.removeprefix("result ") if result is not None else ""
    text = msgspec.json.encode(result.data).decode() if result.data is not msgspec.UNSET else ""
    if 0 < len(text) <= RESULT_SHOWN_MAX:
        return text
    return f"{result.size:,} bytes of JSON; `roost result` prints it"


def format_outputs(instance: InstanceView) -> str:
    """How much there is, and a line for each gap."""
    outputs = instance.outputs
    if outputs is None:
        return ""
    found = files_text(outputs.files, outputs.size)
    gaps = [f"{gap.path or 'all outputs'}: {gap.message}{', required' * gap.required}" for gap in outputs.gaps]
    more = outputs.gaps_count - len(outputs.gaps)
    return "\n".join([found if outputs.digest else "none", *gaps, *([f"and {more} more"] if more else [])])


def _readiness(instance: InstanceView) -> str:
    if instance.crash_loop:
        return f", not ready: it ended {instance.failures} times in a row"
    return ", ready" if instance.ready else f", not ready: {instance.health_message}" if instance.health_message else ""


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Include finished workloads.")
@only_project_option
@click.option("--state", type=click.Choice((*LIVE, *ENDED)), metavar="STATE",
              help="Only in this state, like failed.")  # fmt: skip
@click.option("--template", default="", metavar="NAME", help="Only those that were made from this template.")
@click.option("--limit", type=click.IntRange(1), help=f"How many at most. [default: {SHOWN}; with --json all]")
@at_option
@client_output
def ps(
    client: Client, everything: bool, project: str, state: str | None, template: str, limit: int | None, at: str
) -> Output:
    """List pending and running workloads, and with -a finished ones.

    Examples:
      roost ps                    pending and running workloads
      roost ps -a                 with finished workloads
      roost ps --state failed --json
      roost ps -a --template train
      roost ps --at 2h            the state two hours ago

    Next: `roost show NAME` for details, `roost why NAME` for a pending one.
    """
    states = (state,) if state else ("",) if everything else LIVE
    at = settle(client, at)
    limit = limit or (None if wants_json() else SHOWN)
    most = limit and limit + 1  # one more than is shown tells that there are more
    found: list[WorkloadView] = []
    for wanted in states:
        label = f"template={template}" if template else ""
        found += client.workloads.list(project=project, state=wanted, label=label, limit=most, at=at)
    found.sort(key=lambda workload: workload.submitted_ms, reverse=True)
    if limit and len(found) > limit:
        echo_err(f"the newest {limit:,}; --limit lists more, --project and --state only some")
    empty = "no pending or running workloads; `roost ps -a` lists finished ones, `roost run -- echo hello` starts one"
    return listed(found[:limit], WORKLOADS_HEADER, _workload_row, "" if everything or at else empty)


def _workload_row(workload: WorkloadView) -> tuple[str, ...]:
    name, submitted = str(Target(workload.project, workload.name)), ago(workload.submitted_ms)
    return name, workload.kind, format_state(workload), progress(workload), submitted, ago(workload.finished_ms)


def format_state(workload: WorkloadView) -> str:
    """The state; of a service also how it is: `running 9/10 ready`, `rolling 4/10 to version 3`, `crash loop`."""
    if workload.looping and workload.state in LIVE:
        return f"crash loop {workload.looping}/{workload.count}"
    if workload.ready is None or workload.state != "running":
        return workload.state
    rollout = workload.rollout
    if rollout is not None and rollout.state == "rolling" and workload.version > 1:
        return f"rolling {rollout.done}/{workload.count} to version {workload.version}"
    if rollout is not None and rollout.state == "waiting":
        return f"canary {rollout.done}/{workload.count} of version {workload.version}"
    return "running" if workload.ready >= workload.count else f"running {workload.ready}/{workload.count} ready"


def progress(workload: WorkloadView | OverView) -> str:
    """`1`, or `7 succeeded, 2 running, 1 queued`: most first. A schedule has none: `3 in each run`."""
    if workload.state == "scheduled":
        return f"{workload.count} in each run"
    if workload.count == 1:
        return "1"
    order = sorted(workload.counts.items(), key=lambda state: -state[1])
    return ", ".join(f"{number} {state}" for state, number in order) or "-"
