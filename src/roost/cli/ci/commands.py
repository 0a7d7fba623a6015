"""roost ci: pipelines of actions: run one, check a file, list and show runs, run again what failed."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from roost.cli.ci.cache import cache
from roost.cli.ci.file import read_pipeline_file, retry_run, tree
from roost.cli.ci.follow import RunFollower
from roost.cli.ci.output import JsonLines, Lines
from roost.cli.ci.runs import PipelineRun, cancel_run, elements_of, find_run, list_runs
from roost.cli.ci.stages import HEADER, Stage, exit_code, needs_of, result_of, row_of
from roost.cli.ci.tests import report_lines, tests_of
from roost.cli.common.exit_codes import NOT_PLACED
from roost.cli.common.format import ago, took
from roost.cli.common.interrupts import Interrupts
from roost.cli.common.options import FILE, json_option, limit_option, pairs_option, project_option
from roost.cli.common.output import Output, echo_err, listed, print_json, print_table
from roost.cli.common.session import client_output, connect, json_output
from roost.cli.common.targets import TARGET, Target, in_project
from roost.cli.work.cancel import echo_stopped
from roost.cli.work.logs import instances_of, print_logs
from roost.cli.work.run import SIGNAL_BASE
from roost.cli.work.why import BLOCKED_CODES, UNKNOWN, explain
from roost.client import Client
from roost.model.spec.pipelines.expansion import RunOptions
from roost.model.spec.pipelines.labels import ACTION, name_of
from roost.schema.work import WorkloadView

REASONS_MAX = 10  # first pending actions whose reason is shown

only_option = click.option(
    "--only", multiple=True, metavar="ACTION", help="Only this action and its dependencies; repeatable."
)


@click.group(invoke_without_command=True)
@click.pass_context
def ci(ctx: click.Context) -> None:
    """Run pipelines: actions with dependencies, as jobs on the nodes.

    Examples:
      roost ci check pipeline.yaml          what would run, in order; needs no server
      roost ci run pipeline.yaml            run it, stream all logs, return the code of the first failure
      roost ci run pipeline.yaml --var VERSION=1.2 --only test
      roost ci list
      roost ci follow RUN                   stream the logs of a run, return its exit code
      roost ci approve RUN deploy           let an action start that waits for approval
      roost ci retry RUN                    only actions that did not succeed

    A pipeline is a file:
      name: web
      env: {CI: "1"}                 # for all actions
      actions:
        - name: build
          steps: [make]
        - name: test
          needs: [build]             # after its success; {build: finished}: after its end
          steps: [make test]
          each: ["3.11", "3.12"]     # one instance per value, in $ROOST_VALUE

    Every action is a job with the labels pipeline, run and action, placed like any other: `image`, `resources`,
    `timeout`, `retries`, `placement`, `env` and so on as in a workload document. Actions do not share a directory.

    Without a subcommand it lists runs. RUN is its id, or PIPELINE-ID.

    Next: `roost ci run --help` for exit codes.
    """
    if ctx.invoked_subcommand is None:
        with list_.make_context("list", [], parent=ctx) as inner:
            list_.invoke(inner)


@ci.command()
@click.argument("file", type=FILE, metavar="FILE")
@pairs_option("--var", "variables", metavar="K=V", help="Environment variable of all actions.")
@only_option
@click.option("--workdir", type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="Send what is in this directory. [default: that of FILE, unless it has inputs]")  # fmt: skip
@click.option("--no-send", is_flag=True, help="Do not send the directory of FILE by itself.")
@click.option("--no-follow", is_flag=True, help="Submit it, print the run, and exit.")
@click.option("--retention", default="", metavar="DURATION", help="Retention of records and logs. [default: 7d]")
@click.option("-p", "--project", default="", envvar="ROOST_PROJECT", help="Project of the run, if the file has none.")
@json_option
def run(
    file: str, variables: dict[str, str], only: tuple[str, ...], workdir: str | None, no_send: bool, no_follow: bool,
    retention: str, project: str, as_json: bool,
) -> None:  # fmt: skip
    """Run a pipeline and stream the output of its actions.

    Every line has the name of its action as prefix. All actions are submitted in one request, all or none. stdout has
    only their output; stderr has their progress. Ctrl-C cancels all actions and waits until they have stopped; a
    second one exits at once.

    The directory of FILE is sent, without what its .gitignore and .roostignore name: all actions start with it. Of a
    FILE in a hidden directory such as .ci, it is the one above. A FILE with inputs from this machine says itself
    what is sent. Contents that the server has are not sent again.

    Examples:
      roost ci run pipeline.yaml
      roost ci run pipeline.yaml --var VERSION=1.2 --var DEBUG=1
      roost ci run pipeline.yaml --only test               test and its dependencies
      roost ci run ci/pipeline.yaml --workdir .            with this directory
      run=$(roost ci run pipeline.yaml --no-follow) && roost wait ci:$run
      generate | roost ci run -

    Exit code: 0 when all actions succeeded, else that of the first failure: its code, 128 + N for signal N,
    124 for a timeout, 1 when it was cancelled or could not be started. 130 after Ctrl-C. With
    --no-follow 4 when all actions are pending.
    Next: `roost ci show RUN`, `roost ci retry RUN`, `roost logs PIPELINE-RUN-ACTION`.
    """
    options = RunOptions(variables, only, retention)
    checked = read_pipeline_file(file, options, project, workdir or "", send=not no_send)
    if checked.tree and not as_json:
        echo_err(f"{checked.tree} of this machine is sent; --no-send switches that off")
    with connect() as client:
        checked = checked.sent(client)
        if no_follow:
            made, *_ = checked.start(client)
            sys.exit(_leave(client, made, as_json))
        with Interrupts() as interrupts:  # before it is started: from then on there is something to cancel
            made, stages, since = checked.start(client)
            sys.exit(_follow(client, made, stages, since, interrupts, as_json))


@ci.command()
@click.argument("file", type=FILE, metavar="FILE")
@only_option
@json_output
def check(file: str, only: tuple[str, ...]) -> Output:
    """Validate a pipeline and show what would run, in order.

    Every action is listed below its last dependency. No server is needed.

    Examples:
      roost ci check pipeline.yaml
      roost ci check pipeline.yaml --only test --json

    Exit code: 0 valid, 2 invalid.
    Next: `roost ci run FILE`.
    """
    pipeline = read_pipeline_file(file, RunOptions(only=only)).pipeline
    actions = [
        {"name": action.title, "needs": {need.action: need.when for need in action.needs}}
        for action in pipeline.actions
    ]
    value = {"name": pipeline.title, "project": pipeline.project, "actions": actions}
    return Output(value, lambda: click.echo("\n".join(tree(pipeline))))


@ci.command("list")
@click.argument("pipeline", default="", metavar="[PIPELINE]")
@limit_option(20, 1_000)
@project_option
@client_output
def list_(client: Client, pipeline: str, limit: int, project: str) -> Output:
    """List runs, newest first.

    Examples:
      roost ci list
      roost ci list web --limit 5

    Next: `roost ci show RUN`.
    """
    found = list_runs(client, project, pipeline)[:limit]
    value = [_about(run, run.workloads) for run in found]
    header = ("RUN", "PIPELINE", "STATE", "DONE", "TIME", "SUBMITTED")
    return listed(found, header, _row, "there are no runs here; `roost ci run FILE` makes one", value)


@ci.command()
@click.argument("target", type=TARGET, metavar="RUN")
@project_option
@client_output
def show(client: Client, target: Target, project: str) -> Output:
    """Show the actions of a run: state, time, exit code, node; and the tests of JUnit XML among their outputs.

    Examples:
      roost ci show 3f9a1c
      roost ci show web-3f9a1c --json

    Next: `roost logs NAME-RUN-ACTION`, `roost why NAME-RUN-ACTION`, `roost ci retry RUN`.
    """
    return run_output(client, in_project(target, project))


def run_output(client: Client, target: Target) -> Output:
    found = _find(client, target)
    elements = [elements_of(client, workload) for workload in found.workloads]
    results = [result_of(*item) for item in zip(found.workloads, elements, strict=True)]
    tests = tests_of(client, found.workloads, elements)

    def print_run() -> None:
        click.echo(f"Run:       {found}\nState:     {found.state}\nSubmitted: {ago(found.submitted_ms)}")
        click.echo(f"Time:      {took(found.submitted_ms, found.finished_ms)}\n")
        print_table(HEADER, list(map(row_of, results)))
        for action, report in tests.items():
            click.echo("\n".join(["", *report_lines(action, report)]))

    actions = [{**result._asdict(), "tests": tests.get(result.action)} for result in results]
    return Output(_about(found, actions), print_run)


@ci.command()
@click.argument("target", type=TARGET, metavar="RUN")
@click.option("--no-follow", is_flag=True, help="Request it, and exit.")
@project_option
@json_option
def retry(target: Target, no_follow: bool, project: str, as_json: bool) -> None:
    """Retry the actions that did not succeed.

    These are failed actions, and those cancelled because of them. Succeeded actions stay.

    Examples:
      roost ci retry 3f9a1c
      roost ci retry 3f9a1c --no-follow && roost wait ci:3f9a1c

    Exit code: as with `roost ci run`.
    Next: `roost ci show RUN`.
    """
    target = in_project(target, project)
    with connect() as client:
        found = _find(client, target)
        with Interrupts() as interrupts:
            stages, since, again = retry_run(client, found)
            if not again:
                echo_err(f"all finished actions of {found} succeeded: nothing to retry")
            found = found._replace(workloads=[stage.workload for stage in stages])
            if no_follow or not again:
                sys.exit(_leave(client, found, as_json) if again else 0)
            sys.exit(_follow(client, found, stages, since, interrupts, as_json))


@ci.command()
@click.argument("target", type=TARGET, metavar="RUN")
@project_option
@json_option
def follow(target: Target, project: str, as_json: bool) -> None:
    """Stream the logs of a run from their beginning until all actions are finished.

    Ctrl-C cancels all actions, as with `roost ci run`.

    Examples:
      roost ci follow 3f9a1c
      roost ci follow web-3f9a1c --json

    Exit code: as with `roost ci run`.
    Next: `roost ci show RUN`.
    """
    with connect() as client, Interrupts() as interrupts:
        found = _find(client, in_project(target, project))
        since = client.workloads.page(found.project, found.workloads[0].name).revision
        stages = [
            Stage(workload, needs_of(client.workloads.get(workload.project, workload.name).document))
            for workload in found.workloads
        ]
        for stage in stages:
            stage.reported = False  # also ends from before are reported
        sys.exit(_follow(client, found, stages, since, interrupts, as_json, from_start=True))


@ci.command()
@click.argument("target", type=TARGET, metavar="RUN")
@click.argument("actions", nargs=-1, metavar="[ACTION]...")
@project_option
@json_option
def logs(target: Target, actions: tuple[str, ...], project: str, as_json: bool) -> None:
    """Print the logs of the actions of a run.

    Examples:
      roost ci logs 3f9a1c
      roost ci logs 3f9a1c test lint          only of these actions

    Next: `roost ci follow RUN` until it is finished.
    """
    with connect() as client:
        found = _find(client, in_project(target, project))
        print_logs(client, instances_of(_chosen(found, actions)), False, 0, as_json, "stdout")


@ci.command()
@click.argument("target", type=TARGET, metavar="RUN")
@project_option
@client_output
def cancel(client: Client, target: Target, project: str) -> Output:
    """Cancel all unfinished actions of a run.

    Examples:
      roost ci cancel 3f9a1c && roost wait ci:3f9a1c

    Next: `roost ci show RUN`; `roost ci retry RUN` runs them again.
    """
    found = _find(client, in_project(target, project))
    stopped = cancel_run(client, found.workloads)
    if not stopped:
        return Output(stopped, f"all actions of {found} are finished")
    return Output(stopped, lambda: echo_stopped(stopped))


@ci.command()
@click.argument("target", type=TARGET, metavar="RUN")
@click.argument("action", metavar="ACTION")
@project_option
@client_output
def approve(client: Client, target: Target, action: str, project: str) -> Output:
    """Approve an action that waits for it: `approve: {role: operator}` in the file.

    You need that role in the project. The story of the action and the audit log have your name.

    Examples:
      roost ci approve 3f9a1c deploy && roost ci follow 3f9a1c

    Next: `roost ci show RUN`.
    """
    found = _find(client, in_project(target, project))
    (workload,) = _chosen(found, (action,))
    approved = client.workloads.approve(workload.project, workload.name)
    return Output(approved, f"{Target(workload.project, workload.name)} is approved")


ci.add_command(cache)


def _chosen(found: PipelineRun, actions: tuple[str, ...]) -> list[WorkloadView]:
    """The workloads of these actions, by title or name; without any, all of them."""
    known = {name_of(workload.labels[ACTION]): workload for workload in found.workloads}
    for action in actions:
        if name_of(action) not in known:
            titles = ", ".join(workload.labels[ACTION] for workload in found.workloads)
            raise click.UsageError(f"{found} has no action {action}; it has {titles}")
    wanted = set(map(name_of, actions)) or set(known)
    return [workload for name, workload in known.items() if name in wanted]


def _find(client: Client, target: Target) -> PipelineRun:
    return find_run(client, target.project, target.run or target.name)


def _follow(
    client: Client, found: PipelineRun, stages: list[Stage], since: int, interrupts: Interrupts, as_json: bool,
    *, from_start: bool = False,
) -> int:  # fmt: skip
    """Follow to the end; the exit code is that of the action that failed first."""
    tell = (JsonLines if as_json else Lines)(found, stages)
    following = RunFollower(client, found, stages, tell, interrupts)
    interrupts.patience = 2
    try:
        tell.begin(stages)
        results = following.follow(since, from_start=from_start)
        if not following.watcher.left:
            code = SIGNAL_BASE + interrupts.last if interrupts.count else exit_code(results)
            tell.finish(results, code)
            return code
    except BrokenPipeError:
        following.cancel_all()  # stdout is closed
        raise
    echo_err(f"left; `roost wait ci:{found.id}` waits until it has stopped")
    return SIGNAL_BASE + interrupts.last


def _leave(client: Client, made: PipelineRun, as_json: bool) -> int:
    """Print the run. Exit code 4: all actions are pending."""
    if as_json:
        print_json(_about(made, made.workloads))
    else:
        click.echo(made.id)
    if any(workload.state != "queued" for workload in made.workloads):
        return 0
    found = [explain(client, workload.project, workload.name) for workload in made.workloads[:REASONS_MAX]]
    if any(why.state != "queued" or why.code in ("placeable", UNKNOWN) for why in found):
        return 0
    for message in dict.fromkeys(why.message for why in found if why.code in BLOCKED_CODES):
        echo_err(message)
    return NOT_PLACED


def _about(found: PipelineRun, actions: Sequence[Any]) -> dict[str, Any]:
    return {
        "run": found.id, "pipeline": found.pipeline, "project": found.project, "state": found.state,
        "submitted_ms": found.submitted_ms, "finished_ms": found.finished_ms, "actions": actions,
    }  # fmt: skip


def _row(found: PipelineRun) -> tuple[str, ...]:
    done = f"{sum(workload.is_over for workload in found.workloads)} of {len(found.workloads)}"
    time = took(found.submitted_ms, found.finished_ms)
    return found.id, found.pipeline, found.state, done, time, ago(found.submitted_ms)
