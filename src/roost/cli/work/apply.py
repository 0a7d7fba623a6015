"""roost apply: submit the workloads of a file, or update live ones."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from roost.cli.common.array_file import with_values
from roost.cli.common.exit_codes import DONE, NOT_PLACED, USAGE, Failure, exit_code_of
from roost.cli.common.explanation import explain
from roost.cli.common.output import echo_err, print_json, print_table
from roost.cli.common.rollout_progress import follow, seconds, timeout_option, wait_option
from roost.cli.common.session import connect, json_option
from roost.cli.common.targets import Target
from roost.client import Client
from roost.client.errors import ApiError
from roost.client.rollout import RolloutStatus
from roost.schema.work import SubmittedView, WorkloadView

EXPECTED_CODES = ("placeable", "after", "schedule")  # pending as its document asks for, not for lack of room
REASONS_MAX = 10  # reasons of pending instances; `roost why` has the rest
FILE_BYTES_MAX = 8 << 20  # as much as the server takes in one request


@click.command()
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin.")
@click.option("--plan", "plan", default="", metavar="TOKEN", help="Do exactly what this plan says, or nothing.")
@wait_option
@timeout_option
@json_option
def apply(files: tuple[str, ...], plan: str, wait: bool, timeout: str | None, as_json: bool) -> None:
    """Submit the workloads of a YAML or JSON file, or make new versions of live ones.

    A file may have several documents, or a list. All are accepted, or none. A live workload with the same document is
    not changed; with another document it gets a new version. --wait waits until a service is available, and until a
    job is finished.

    Examples:
      roost apply -f job.yaml
      roost apply -f web.yaml -f db.yaml          all of them, or none
      generate | roost apply -f -
      roost apply -f web.yaml --plan TOKEN        exactly what `roost plan` showed, or nothing
      roost apply -f web.yaml --wait              until it is available or rolled back

    Exit code: 0 done, 4 some work is pending. With --wait: 1 failed or rolled back, 124 time limit.
    Next: `roost ps`, `roost versions NAME --diff`, `roost rollback NAME`, `roost why NAME`.
    """
    timeout_s = seconds(timeout, wait)
    places = read_files(files)
    with connect() as client:
        with explained_where(places):
            documents = [document for _, document in places]
            if len(documents) == 1:
                done = [client.workloads.submit(documents[0], same_ok=True, plan=plan)]
            else:
                done = client.workloads.submit_batch(documents, same_ok=True, plan=plan)
        if not as_json:
            print_table(("WORKLOAD", "RESULT", "STATE"), [_row(workload) for workload in done])
        waiting = _waiting(client, done)
        for message in waiting:
            echo_err(message)
        code, followed = NOT_PLACED if waiting else DONE, {}
        if wait:
            # A scheduled job never ends and gets nowhere.
            waited = [workload for workload, (_, document) in zip(done, places, strict=True)
                      if not document.get("schedule")]  # fmt: skip
            code, found = follow(client, waited, timeout_s)
            followed = {status.workload.key: status for status in found}
    if as_json:
        print_json([_as_data(workload, followed.get(workload.key)) for workload in done])
    sys.exit(code)


def _as_data(workload: SubmittedView, followed: RolloutStatus | None) -> dict[str, Any]:
    data = {"created": workload.result == "created", "result": workload.result, "version": workload.version}
    if followed is None:
        return {"workload": workload, **data}
    return {"workload": followed.workload, **data, "well": followed.well, "message": followed.message}


def _row(workload: SubmittedView) -> tuple[str, ...]:
    result = f"version {workload.version}" if workload.result == "changed" else workload.result
    return str(Target(workload.project, workload.name)), result, workload.state


def _waiting(client: Client, workloads: Sequence[WorkloadView]) -> list[str]:
    waiting = [workload for workload in workloads if workload.state == "queued"]
    found = [explain(client, workload.project, workload.name) for workload in waiting[:REASONS_MAX]]
    return [why.message for why in found if why.state == "queued" and why.code not in EXPECTED_CODES]


def read_files(files: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Every document of all files, each with its place for errors."""
    places = [item for file in files for item in read_file(file)]
    if not places:
        raise Failure(f"{', '.join(files)}: there is no workload in it", exit_code=USAGE)
    return places


def read_file(file: str) -> Iterator[tuple[str, Any]]:
    """Every document of a file, each with its place for errors."""
    import ryaml

    try:
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}", exit_code=USAGE) from None
    except UnicodeDecodeError as error:
        raise Failure(f"{file}: this is not UTF-8: {error.reason} at byte {error.start}", exit_code=USAGE) from None
    if len(text) > FILE_BYTES_MAX:
        raise Failure(f"{file}: a file may have {FILE_BYTES_MAX:,} bytes; this one has {len(text):,}", exit_code=USAGE)
    try:
        documents = ryaml.loads_all(text) or []
    except ValueError as error:
        raise Failure(f"{file}: this is not YAML or JSON: {error}", exit_code=USAGE) from None
    flat = [item for document in documents for item in (document if isinstance(document, list) else [document])]
    flat = [document for document in flat if document is not None]
    for number, document in enumerate(flat, start=1):
        where = file if len(flat) == 1 else f"{file}: workload {number}"
        yield where, with_values(document, where, Path(file).parent)


@contextmanager
def explained_where(places: list[tuple[str, Any]]) -> Iterator[None]:
    """Report errors of the server with the file of the document."""
    try:
        yield
    except ApiError as error:
        message = error.message
        if not error.code.startswith("plan_"):
            number, field = split_path(error.path, len(places))
            message = f"{places[number][0]}: {field}: {message}" if field else f"{places[number][0]}: {message}"
        raise Failure(message, error.hint, exit_code_of(error)) from None


def split_path(path: str, documents: int) -> tuple[int, str]:
    """The document and the field that a path of the server's answer points at: [2].resources.cpu."""
    number = 0
    if path.startswith("["):
        head, _, path = path[1:].partition("]")
        number = int(head) if head.isdigit() and int(head) < documents else 0
    path = path.lstrip(".")
    return number, "" if path == "$" else path
