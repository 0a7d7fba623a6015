"""roost ci: pipelines of actions: run one, check a file, list and show runs, run again what failed."""

import os
from typing import TYPE_CHECKING, Any

import click

from roost.cli.outcome import BROKEN_PIPE, NOT_PLACED
from roost.cli.output import ago, print_json, print_table, say, took
from roost.cli.session import connect, json_option, pairs, project_option
from roost.cli.targets import TARGET, Target, in_project

if TYPE_CHECKING:
    from roost.cli.ci_runs import Run
    from roost.cli.ci_stages import Stage
    from roost.client import Client
    from roost.model.pipeline import Pipeline

RUN_BYTES = 3  # six hexadecimal digits: two runs of one pipeline do not meet by chance, and one that does is refused
SIGNAL_BASE = 128
REASONS_MAX = 10  # first actions whose reason to wait is told

only_option = click.option(
    "--only", multiple=True, metavar="ACTION", help="Only this action and what it needs; may be repeated."
)


@click.group(
    epilog="""\b
A pipeline is a file:
  name: web
  env: {CI: "1"}                 # for all actions
  actions:
    - name: build
      steps: [make]
    - name: test
      needs: [build]             # runs when build has succeeded; {build: finished} when it is over
      steps: [make test]
      each: ["3.11", "3.12"]     # one run for each value, in $ROOST_VALUE
\b
Every action is a job with the labels pipeline, run and action, placed like any other: `image`, `resources`, `timeout`,
`retries`, `placement`, `env` and so on as in a workload document. Actions do not share a directory: each has its own.
\b
Examples:
  roost ci check pipeline.yaml          what would run, in order; no server is asked
  roost ci run pipeline.yaml            run it, stream all logs, return the code of what failed first
  roost ci run pipeline.yaml --var VERSION=1.2 --only test
  roost ci list
  roost ci retry RUN                    only what did not succeed
\b
Next: docs/ci.md, from nothing to a pipeline that runs; `roost ci run --help` for exit codes.
"""
)
def ci() -> None:
    """Run pipelines: actions that need each other, on whatever nodes there are."""


@ci.command(
    epilog="""\b
Examples:
  roost ci run pipeline.yaml
  roost ci run pipeline.yaml --var VERSION=1.2 --var DEBUG=1
  roost ci run pipeline.yaml --only test               test, and what it needs
  run=$(roost ci run pipeline.yaml --no-follow) && roost wait ci:$run
  generate | roost ci run -
\b
Exit code: 0 when all actions succeeded, else that of the action that failed first: its own code, 128 + N when signal N
ended it, 124 when it ran past its timeout, 1 when it was cancelled or could not be run. 130 after Ctrl-C. With
--no-follow 4 when no action has a place yet.
Next: `roost ci show RUN`, `roost ci retry RUN`, `roost logs PIPELINE-RUN-ACTION`.
"""
)
@click.argument("file", metavar="FILE")
@click.option("--var", "variables", multiple=True, callback=pairs, metavar="K=V", help="A variable for all actions.")
@only_option
@click.option("--no-follow", is_flag=True, help="Submit it, print the run, and leave.")
@click.option("--keep", default="", metavar="DURATION", help="How long records and logs stay. [default: 7d]")
@click.option("-p", "--project", default="", envvar="ROOST_PROJECT", help="Whose run it is, if the file does not say.")
@json_option
@click.pass_context
def run(
    ctx: click.Context, file: str, variables: tuple[str, ...], only: tuple[str, ...], no_follow: bool, keep: str,
    project: str, as_json: bool,
) -> None:  # fmt: skip
    """Run a pipeline and stream what its actions write.

    Every line comes behind the name of its action. All actions are submitted in one request: all of them are taken in,
    or none. stdout has what they write and nothing else; stderr says what becomes of them. Ctrl-C cancels all actions
    and waits until they have stopped; a second one leaves at once.
    """
    from roost.cli.ci_file import read_jobs  # noqa: PLC0415
    from roost.cli.interrupts import Interrupts  # noqa: PLC0415

    given = dict(each.split("=", 1) for each in variables)
    jobs = read_jobs(file, os.urandom(RUN_BYTES).hex(), given, only, keep, project)
    with connect() as client:
        if no_follow:
            made, _ = jobs.submit(client)
            ctx.exit(_leave(client, made, as_json))
        with Interrupts() as interrupts:  # before it is submitted: from then on there is something to cancel
            from roost.cli.ci_stages import Stage  # noqa: PLC0415

            made, since = jobs.submit(client)
            stages = [Stage(*each) for each in zip(made.workloads, jobs.documents, strict=True)]
            ctx.exit(_follow(client, made, stages, since, interrupts, as_json))


@ci.command(
    epilog="""\b
Examples:
  roost ci check pipeline.yaml
  roost ci check pipeline.yaml --only test --json
\b
Exit code: 0 it is fine, 2 it is not.
Next: `roost ci run FILE`.
"""
)
@click.argument("file", metavar="FILE")
@only_option
@json_option
def check(file: str, only: tuple[str, ...], as_json: bool) -> None:
    """Check a pipeline and say what would run, in order.

    Every action stands below the last one that it needs. No server is asked.
    """
    from roost.cli.ci_file import read_checked, tree  # noqa: PLC0415

    pipeline = read_checked(file, only)
    if as_json:
        print_json(_told(pipeline))
        return
    for line in tree(pipeline):
        click.echo(line)


@ci.command("list", epilog="""\b
Examples:
  roost ci list
  roost ci list web --limit 5
\b
Next: `roost ci show RUN`.
""")  # fmt: skip
@click.argument("pipeline", default="", metavar="[PIPELINE]")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many at most.")
@project_option
@json_option
def list_(pipeline: str, limit: int, project: str, as_json: bool) -> None:
    """List runs, newest first."""
    from roost.cli.ci_runs import list_runs  # noqa: PLC0415

    with connect() as client:
        found = list_runs(client, project, pipeline)[:limit]
    if as_json:
        print_json([{**_about(each), "actions": each.workloads} for each in found])
        return
    header = ("RUN", "PIPELINE", "STATE", "DONE", "TIME", "SUBMITTED")
    print_table(header, [_row(each) for each in found])
    if not found:
        say("there are no runs here; `roost ci run FILE` makes one")


@ci.command(
    epilog="""\b
Examples:
  roost ci show 3f9a1c
  roost ci show web-3f9a1c --json
\b
Next: `roost logs NAME-RUN-ACTION`, `roost why NAME-RUN-ACTION`, `roost ci retry RUN`.
"""
)
@click.argument("target", type=TARGET, metavar="RUN")
@project_option
@json_option
def show(target: Target, project: str, as_json: bool) -> None:
    """Show the actions of a run: state, time, exit code, node."""
    from roost.cli.ci_runs import elements_of, find_run  # noqa: PLC0415
    from roost.cli.ci_stages import HEADER, result_of, rows_of  # noqa: PLC0415

    target = in_project(target, project)
    with connect() as client:
        found = find_run(client, target.project, target.name)
        results = [result_of(each, elements_of(client, each)) for each in found.workloads]
    if as_json:
        print_json({**_about(found), "actions": [each._asdict() for each in results]})
        return
    click.echo(f"Run:       {found}\nState:     {found.state}\nSubmitted: {ago(found.submitted_ms)}")
    click.echo(f"Time:      {took(found.submitted_ms, found.finished_ms)}\n")
    print_table(HEADER, rows_of(results))


@ci.command(
    epilog="""\b
Examples:
  roost ci retry 3f9a1c
  roost ci retry 3f9a1c --no-follow && roost wait ci:3f9a1c
\b
Exit code: as with `roost ci run`.
Next: `roost ci show RUN`.
"""
)
@click.argument("target", type=TARGET, metavar="RUN")
@click.option("--no-follow", is_flag=True, help="Ask for it, and leave.")
@project_option
@json_option
@click.pass_context
def retry(ctx: click.Context, target: Target, no_follow: bool, project: str, as_json: bool) -> None:
    """Run again what did not succeed.

    That is what failed, and what was cancelled because of that. What succeeded stays as it is.
    """
    from roost.cli.ci_file import retry_run  # noqa: PLC0415
    from roost.cli.ci_runs import find_run  # noqa: PLC0415
    from roost.cli.interrupts import Interrupts  # noqa: PLC0415

    target = in_project(target, project)
    with connect() as client:
        found = find_run(client, target.project, target.name)
        with Interrupts() as interrupts:
            stages, since, again = retry_run(client, found)
            if not again:
                say(f"nothing of {found} has ended otherwise than well")
            found = found._replace(workloads=[stage.workload for stage in stages])
            if no_follow or not again:
                ctx.exit(_leave(client, found, as_json) if again else 0)
            ctx.exit(_follow(client, found, stages, since, interrupts, as_json))


def _follow(client: "Client", found: "Run", stages: "list[Stage]", since: int, interrupts: Any, as_json: bool) -> int:
    """Follow to the end; the exit code is that of the action that failed first."""
    from roost.cli.ci_follow import Following  # noqa: PLC0415
    from roost.cli.ci_stages import exit_code  # noqa: PLC0415
    from roost.cli.ci_tell import JsonLines, Lines  # noqa: PLC0415

    tell = (JsonLines if as_json else Lines)(found, stages)
    following = Following(client, found, stages, tell, interrupts)
    interrupts.patience = 2
    try:
        tell.begin(stages)
        results = following.follow(since)
        if not following.left:
            code = SIGNAL_BASE + interrupts.last if interrupts.count else exit_code(results)
            tell.finish(results, code)
            return code
    except BrokenPipeError:
        following.cancel_all()  # nobody reads it any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    say(f"left; `roost wait ci:{found.id}` waits until it has stopped")
    return SIGNAL_BASE + int(interrupts.last)


def _leave(client: "Client", made: "Run", as_json: bool) -> int:
    """Say which run it is. 4: no action has a place yet."""
    if as_json:
        print_json({**_about(made), "actions": made.workloads})
    else:
        click.echo(made.id)
    if any(each.state != "queued" for each in made.workloads):
        return 0
    from roost.cli.run import WAITING_CODES  # noqa: PLC0415

    found = [client.why(each.project, each.name, advice=False) for each in made.workloads[:REASONS_MAX]]
    if any(why.state != "queued" or why.code == "placeable" for why in found):
        return 0
    for words in dict.fromkeys(why.words for why in found if why.code in WAITING_CODES):
        say(words)
    return NOT_PLACED


def _about(found: "Run") -> dict[str, Any]:
    return {
        "run": found.id, "pipeline": found.pipeline, "project": found.project, "state": found.state,
        "submitted_ms": found.submitted_ms, "finished_ms": found.finished_ms,
    }  # fmt: skip


def _row(found: "Run") -> tuple[str, ...]:
    done = sum(each.is_over for each in found.workloads)
    return (
        found.id,
        found.pipeline,
        found.state,
        f"{done} of {len(found.workloads)}",
        took(found.submitted_ms, found.finished_ms),
        ago(found.submitted_ms),
    )


def _told(pipeline: "Pipeline") -> dict[str, Any]:
    actions = [
        {"name": each.name, "needs": {need.action: need.when for need in each.needs}} for each in pipeline.actions
    ]
    return {"name": pipeline.name, "project": pipeline.project, "actions": actions}
