"""roost history, events and audit: finished workloads, transitions, and requests with their principals."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import click

from roost.cli.common.as_of import period_options
from roost.cli.common.format import clock_since, current_ms, day_and_time, moment, took
from roost.cli.common.options import json_option, limit_option, only_project_option
from roost.cli.common.output import Output, echo_err, listed, print_json, print_json_line, print_table, printable
from roost.cli.common.session import client_output, connect
from roost.cli.common.targets import NODE, TARGET, Target, in_project
from roost.cli.work.show import ENDED, progress
from roost.client import Client
from roost.model.limits import DEFAULT_PROJECT
from roost.model.records.opaque import Audit
from roost.schema.history import EventView, OverView
from roost.schema.page import HistoryBehind

HEADER = ("FINISHED", "NAME", "STATE", "INSTANCES", "NODE", "EXIT", "WAITED", "RAN", "CAUSE")
AUDIT_HEADER = ("TIME", "PRINCIPAL", "FROM", "CHANGE", "OBJECT")
EVENTS_HEADER = ("TIME", "OBJECT", "EVENT", "NODE", "PRINCIPAL", "REASON")


@click.command()
@click.argument("name", required=False, default="", metavar="[[PROJECT/]NAME]")
@only_project_option
@click.option("--state", type=click.Choice(ENDED), default=None, help="Only with this end state.")
@period_options
@limit_option(50, 100_000)
@client_output
def history(client: Client, name: str, project: str, state: str | None, since: str, until: str, limit: int) -> Output:
    """List finished workloads, newest first, also those that `roost ps -a` no longer has.

    Examples:
      roost history                         the last 50 that finished
      roost history train                   with this name prefix
      roost history --state failed --since 1d
      roost history --since 22:00 --until 06:00     last night
      roost history -p web --since 2026-01-01 --until 2026-02-01 --limit 1000 --json

    WAITED is the time from submission to the first start, RAN the time from there to the end.

    Next: `roost show NAME --story` for everything about one, `roost events NAME` for its events,
    `roost versions NAME` for the versions of a live workload.
    """
    given, slash, rest = name.rpartition("/")
    project, name = (given, rest) if slash else (project, name)
    found = client.history.list(project=project, name=name, state=state or "", since=since, until=until, limit=limit)

    def show() -> None:
        tell_behind(client.history.behind)
        is_today = bool(found) and moment(found[-1].finished_ms)[:10] == moment(current_ms())[:10]
        print_table(HEADER, [_row(finished, is_today) for finished in found])
        if not found:
            echo_err("no finished workloads match; `roost ps` lists pending and running ones")
        elif len(found) == limit:
            echo_err(f"the last {limit}; --limit lists more, --until earlier ones")

    return Output(found, show)


def tell_behind(behind: HistoryBehind | None) -> None:
    """On stderr: what is newer than this is not in the answer."""
    if behind is not None:
        when = f"as of {day_and_time(behind.at_ms)} (revision {behind.revision})" if behind.revision else "incomplete"
        reason = f": {behind.reason}" if behind.reason else ""
        echo_err(f"the history of this server is behind, the answer is {when}{reason}")


def _row(over: OverView, is_today: bool) -> tuple[str, ...]:
    name = str(Target(over.project, over.name))
    code = "-" if over.exit_code is None else str(over.exit_code)
    waited = took(over.submitted_ms, over.started_ms or over.finished_ms)
    ran = took(over.started_ms, over.finished_ms)
    about = (name, over.state, progress(over), over.node or "-", code, waited, ran, over.message or "-")
    return moment(over.finished_ms)[11 if is_today else 0 :], *about


@click.command()
@click.argument("target", type=TARGET, required=False, metavar="[NAME[.INDEX]]")
@click.option("-f", "--follow", is_flag=True, help="Follow new events.")
@only_project_option
@click.option("--node", type=NODE, default="", metavar="NODE", help="Only of this node.")
@click.option("--kind", default="", help="Only this kind: instance, workload, node, project, audit, ...")
@click.option("--what", default="", help="Only this event: placed, failed, lost, submitted, ...")
@period_options
@limit_option(100, 100_000)
@json_option
def events(
    target: Target | None, follow: bool, since: str, until: str, limit: int, as_json: bool, **wanted: Any
) -> None:
    """List events, oldest first: transitions of instances, nodes and workloads, settings, and requests by principal.

    Examples:
      roost events                          the last 100
      roost events -f                       follow new events
      roost events train.7                  all events of one instance
      roost events --node node-1 --since 1d
      roost events --what lost --json

    Next: `roost show NAME --story` for one workload, `roost ps --at TIME` for a past state.
    """
    if target is not None:
        target = in_project(target, wanted["project"] or DEFAULT_PROJECT)
        wanted |= {"project": target.project, "workload": target.name, "index": target.index}
    if follow and until:
        raise click.UsageError("--until and --follow do not go together")
    with connect() as client:
        found = client.events.list(**wanted, since=since, until=until, limit=limit) if since or not follow else []
        found.reverse()
        tell_behind(client.events.behind)
        if follow:
            for event in chain(found, client.events.follow(**wanted, since=found[-1].id if found else None)):
                if as_json:
                    print_json_line(event)
                else:
                    click.echo("  ".join(printable(part) for part in _event_row(event) if part != "-"))
            return
    if as_json:
        print_json(found)
    else:
        when = clock_since(found[0].at_ms) if found else day_and_time
        print_table(EVENTS_HEADER, [_event_row(event, when) for event in found])
    if not found:
        echo_err("no event matches, or it was deleted; `roost history` shows finished workloads")


def _event_row(event: EventView, when: Callable[[int], str] = day_and_time) -> tuple[str, ...]:
    if event.workload:
        to = str(Target(event.project, event.workload, event.index))
    else:
        to = event.node if event.kind == "node" else event.kind
    node = event.node if event.kind != "node" else ""
    return when(event.at_ms), to, event.what, node or "-", event.who or "-", event.message or "-"


@click.command()
@click.option("--who", default="", metavar="NAME", help="Only of root, token:NAME, or the e-mail address of a user.")
@click.option("--what", default="", metavar="KIND", help="Only this kind: submit, cancel, drain, setproject ...")
@limit_option(50, 1_000)
@client_output
def audit(client: Client, who: str, what: str, limit: int) -> Output:
    """List changes, refused requests and backups with their principals, newest first. Requires operator in all
    projects.

    Examples:
      roost audit
      roost audit --who ann@example.com
      roost audit --who token:ci --what submit --limit 1000 --json

    Next: `roost tokens` and `roost members` list roles. Entries are kept as long as the history is; a server without
    one shows its last thousand changes.
    """
    found = client.audit.list(who=who, what=what, limit=limit)
    return listed(found, AUDIT_HEADER, _audit_row, "no change matches")


def _audit_row(entry: Audit) -> tuple[str, ...]:
    what = f"{entry.what} (refused)" if entry.refused else entry.what
    target = ": ".join(filter(None, (entry.target, entry.detail)))
    return moment(entry.at_ms), entry.who, entry.where or "-", what, target
