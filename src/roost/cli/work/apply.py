"""roost apply and plan: submit the workloads of a file or update live ones; show what that would do."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import click

from roost.cli.common.array_file import with_values
from roost.cli.common.exit_codes import (
    DONE,
    NOT_PLACED,
    UNAUTHORIZED,
    USAGE,
    WOULD_CHANGE,
    Failure,
    exit_code_of,
    on_lines,
)
from roost.cli.common.options import FILE, json_option
from roost.cli.common.output import Output, echo_err, print_json, print_table
from roost.cli.common.rollout_progress import follow, seconds, timeout_option, wait_option
from roost.cli.common.sending import send_inputs
from roost.cli.common.session import connect, json_output
from roost.cli.common.targets import Target
from roost.cli.work.why import explain, warn_unenforced
from roost.client.errors import ApiError
from roost.client.files.inputs import with_absolute_paths
from roost.client.wait import RolloutStatus
from roost.model.errors import Unreadable
from roost.model.spec.folded_lines import refuse_folded_items
from roost.schema.plans import PlanView
from roost.schema.work import SubmittedView

EXPECTED_CODES = ("placeable", "after", "needs_approval")  # pending as its document asks for, not for lack of room
REASONS_MAX = 10  # reasons of pending instances; `roost why` has the rest
FILE_BYTES_MAX = 8 << 20  # as much as the server takes in one request


file_option = click.option(
    "-f", "--file", "files", type=FILE, multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin."
)


@click.command()
@file_option
@click.option("--plan", "plan", default="", metavar="TOKEN", help="Do exactly what this plan says, or nothing.")
@click.option("--rerun", is_flag=True, help="Run jobs again that are finished and unchanged.")
@wait_option
@timeout_option
@json_option
def apply(files: tuple[str, ...], plan: str, rerun: bool, wait: bool, timeout: str | None, as_json: bool) -> None:
    """Submit the workloads of a YAML or JSON file, or make new versions of live ones.

    A file may have several documents, or a list. All are accepted, or none. A live workload with the same document is
    not changed; with another document it gets a new version. A finished job with the same document is not run again.
    --wait waits until a service is available, and until a job is finished; not for the runs of a schedule.
    Inputs from a path of this machine (`from: ./data`, relative to the file) are sent before.

    Examples:
      roost apply -f job.yaml
      roost apply -f web.yaml -f db.yaml          all of them, or none
      generate | roost apply -f -
      roost apply -f job.yaml --rerun             run a finished job again
      roost apply -f web.yaml --plan TOKEN        exactly what `roost plan` showed, or nothing
      roost apply -f web.yaml --wait              until it is available or rolled back

    Exit code: 0 done, 4 some work is pending or was rejected. With --wait: 1 failed or rolled back, 124 time limit.
    Next: `roost ps`, `roost versions NAME --diff`, `roost rollback NAME`, `roost why NAME`.
    """
    timeout_s = seconds(timeout, wait)
    places = _read_files(files)
    with connect() as client:
        with _explained_where(places):
            places = send_inputs(client, places)
            documents = [document for _, document in places]
            if len(documents) == 1:
                done = [client.workloads.submit(documents[0], same_ok=True, plan=plan, rerun=rerun)]
            else:
                done = client.workloads.submit_batch(documents, same_ok=True, plan=plan, rerun=rerun)
        if not as_json:
            print_table(("WORKLOAD", "RESULT", "STATE"), [_row(workload) for workload in done])
        for workload in done:
            warn_unenforced(workload)
        pending = [workload for workload in done if workload.state == "queued"][:REASONS_MAX]
        reasons = [explain(client, workload.project, workload.name) for workload in pending]
        blocked = [why.message for why in reasons if why.state == "queued" and why.code not in EXPECTED_CODES]
        for message in blocked:
            echo_err(message)
        rejected = [workload for workload in done if workload.state == "rejected"]
        for workload in rejected:
            echo_err(f"{Target(workload.project, workload.name)} was rejected: {workload.message}")
        _report_finished(done)
        code, followed = NOT_PLACED if blocked or rejected else DONE, {}
        if wait:
            code, found = follow(client, done, timeout_s)
            followed = {status.workload.key: status for status in found}
    if as_json:
        print_json([_as_data(workload, followed.get(workload.key)) for workload in done])
    sys.exit(code)


def _report_finished(done: list[SubmittedView]) -> None:
    finished = [workload for workload in done if workload.result == "unchanged" and workload.is_over]
    for workload in finished[:REASONS_MAX]:
        name = Target(workload.project, workload.name)
        echo_err(f"{name} is finished ({workload.state}) and unchanged: nothing was done; --rerun runs it again")


def _as_data(workload: SubmittedView, followed: RolloutStatus | None) -> dict[str, Any]:
    data = {"created": workload.result == "created", "result": workload.result, "version": workload.version}
    if followed is None:
        return {"workload": workload, **data}
    return {"workload": followed.workload, **data, "well": followed.well, "message": followed.message}


def _row(workload: SubmittedView) -> tuple[str, ...]:
    result = f"version {workload.version}" if workload.result == "changed" else workload.result
    return str(Target(workload.project, workload.name)), result, workload.state


def _read_files(files: tuple[str, ...]) -> list[tuple[str, Any]]:
    places = [item for file in files for item in read_file(file)]
    if not places:
        raise Failure(f"{', '.join(files)}: there is no workload in it", exit_code=USAGE)
    return places


def read_file(file: str) -> Iterator[tuple[str, Any]]:
    """Every document of a file, each with its place for errors."""
    import ryaml

    def wrong(message: str | None) -> Failure:
        return Failure(f"{file}: {message}", exit_code=USAGE)

    try:
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except OSError as error:
        raise wrong(error.strerror) from None
    except UnicodeDecodeError as error:
        raise wrong(f"this is not UTF-8: {error.reason} at byte {error.start}") from None
    if len(text) > FILE_BYTES_MAX:
        raise wrong(f"a file may have {FILE_BYTES_MAX:,} bytes; this one has {len(text):,}")
    try:
        documents = ryaml.loads_all(text) or []
        refuse_folded_items(text, documents)
    except Unreadable as error:
        raise wrong(error.message) from None
    except ValueError as error:
        is_placeholder = "unhashable" in str(error) and "{{" in text  # {{NAME}} is a mapping in a mapping to YAML
        reason = 'write placeholders in quotes: "{{NAME}}"' if is_placeholder else error
        raise wrong(f"this is not YAML or JSON: {reason}") from None
    nested = [document if isinstance(document, list) else [document] for document in documents]
    flat = [document for document in chain.from_iterable(nested) if document is not None]
    for number, document in enumerate(flat, start=1):
        where = file if len(flat) == 1 else f"{file}: workload {number}"
        folder = Path(file).parent
        yield where, with_absolute_paths(with_values(document, where, folder), folder)


@contextmanager
def _explained_where(places: list[tuple[str, Any]]) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status == UNAUTHORIZED:  # no document is the cause
            raise
        message = error.message
        if not error.code.startswith("plan_"):
            message = on_lines(_with_place(places, *item) for item in error.errors)
        raise Failure(message, error.hint, exit_code_of(error)) from None


def _with_place(places: list[tuple[str, Any]], path: str, message: str) -> str:
    number, field = split_path(path, len(places))
    return f"{places[number][0]}: {field}: {message}" if field else f"{places[number][0]}: {message}"


def split_path(path: str, documents: int) -> tuple[int, str]:
    """The document and the field that a path of the server's answer points at: [2].resources.cpu."""
    number = 0
    if path.startswith("["):
        head, _, path = path[1:].partition("]")
        number = int(head) if head.isdigit() and int(head) < documents else 0
    path = path.lstrip(".")
    return number, "" if path == "$" else path


@click.command()
@file_option
@json_output
def plan(files: tuple[str, ...]) -> Output:
    """Show what applying a file would do: placements, pending instances and why, preemptions.

    The scheduler decides on a copy of the state. Nothing changes; only inputs from this machine are sent.

    Examples:
      roost plan -f job.yaml
      roost plan -f web.yaml -f db.yaml --json
      generate | roost plan -f -

    Next: `roost apply -f FILE --plan TOKEN` does exactly what the plan says, or nothing.
    Exit code: 0 nothing would change, 3 something would, 2 the file is invalid.
    """
    places = _read_files(files)
    with connect() as client, _explained_where(places):
        made = client.workloads.plan([document for _, document in send_inputs(client, places)])
    return Output(made, lambda: _print_plan(made), WOULD_CHANGE if made.changes else DONE)


def _print_plan(made: PlanView) -> None:
    plans = {"create": made.created, "new version": made.changed, "unchanged": made.unchanged}
    print_table(("WORKLOAD", "PLAN"), [(name, plan) for plan, names in plans.items() for name in names])
    tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {
        ("INSTANCE", "NODE", "STRATEGY", "DEVICES", "PORTS"): [
            (placing.instance, placing.node, placing.strategy, _numbers(placing.devices), _numbers(placing.ports))
            for placing in made.placed
        ],
        ("STOPPED", "NODE", "REASON"): [(stop.instance, stop.node, stop.message) for stop in made.stopped],
        ("PENDING", "COUNT", "CODE", "REASON"): [
            (entry.workload, str(entry.count), entry.code, entry.message) for entry in made.pending
        ],
        ("VM", "CHANGE"): [(name, "at its next boot: `roost vm reboot`") for name in made.next_boot],
    }
    tables["WORKLOAD", "NOTE"] = [(note.workload, note.message) for note in made.notes]
    for header, rows in tables.items():
        if rows:
            click.echo()
            print_table(header, rows)
    if made.changes:
        click.echo(f"\nApply exactly this plan: roost apply --plan {made.token} -f ...", err=True)


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values)) or "-"
