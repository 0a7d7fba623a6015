"""roost apply: submit the workloads of a file, or make new versions of those that live."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roost.cli.outcome import DONE, NOT_PLACED, USAGE, Failure, exit_code_of
from roost.cli.output import print_json, print_table, say
from roost.cli.rolling import follow, seconds, timeout_option, wait_option
from roost.cli.session import connect, json_option
from roost.cli.targets import Target

if TYPE_CHECKING:
    from roost.client import Client
    from roost.client.types import Workload

AS_IT_SHOULD = ("placeable", "after", "schedule")  # it waits for a moment, for others, or for its tick: not for room
REASONS_MAX = 10  # told of those that wait; `roost why` tells the rest
FILE_BYTES_MAX = 8 << 20  # as much as the server takes in one request


@click.command(
    epilog="""\b
Examples:
  roost apply -f job.yaml
  roost apply -f web.yaml -f db.yaml          all of them, or none
  generate | roost apply -f -
  roost apply -f web.yaml --plan TOKEN        exactly what `roost plan` said, or nothing
  roost apply -f web.yaml --wait              until it is updated and available, or has gone back
\b
Exit code: 0 done, 4 something has no place now. With --wait: 1 it failed or has gone back, 124 not in time.
Next: `roost ps`, `roost history NAME --diff`, `roost rollback NAME`, `roost why NAME`.
"""
)
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin.")
@click.option("--plan", "plan", default="", metavar="TOKEN", help="Do exactly what this plan says, or nothing.")
@wait_option
@timeout_option
@json_option
def apply(files: tuple[str, ...], plan: str, wait: bool, timeout: str | None, as_json: bool) -> None:
    """Submit the workloads of a YAML or JSON file, or make new versions of those that live.

    A file may hold several documents, or a list. All of them are taken in, or none. What is there already with the same
    document stays as it is, so applying twice does no harm; with another document it becomes a new version of itself.
    With --wait a service is waited for until it is available, a job until it is over.
    """
    timeout_s = seconds(timeout, wait)
    places = read_files(files)
    with connect() as client:
        with explained_where(places):
            done = _submit(client, places, plan)
        if not as_json:
            rows = [(str(Target(each.project, each.name)), _result(each), each.state) for each in done]
            print_table(("WORKLOAD", "RESULT", "STATE"), rows)
        waiting = _waiting(client, done)
        for words in waiting:
            say(words)
        code, followed = NOT_PLACED if waiting else DONE, {}
        if wait:
            code, found = follow(client, _followed(places, done), timeout_s)
            followed = {each.workload.key: each for each in found}
    if as_json:
        print_json([
            {"workload": followed[each.key].workload if each.key in followed else each,
             "created": each.result == "created", "result": each.result, "version": each.version}
            | ({"well": followed[each.key].well, "words": followed[each.key].words} if each.key in followed else {})
            for each in done
        ])  # fmt: skip
    sys.exit(code)


def _result(workload: "Workload") -> str:
    return f"version {workload.version}" if workload.result == "changed" else workload.result


def _followed(places: list[tuple[str, Any]], done: list["Workload"]) -> list["Workload"]:
    """Those that come to an end or get somewhere: what runs by a schedule never does."""
    scheduled = [bool(document.get("schedule")) for _, document in places]
    return [each for each, is_scheduled in zip(done, scheduled, strict=True) if not is_scheduled]


def _waiting(client: "Client", workloads: list["Workload"]) -> list[str]:
    """Why those wait that were taken in and have no place now."""
    waiting = [each for each in workloads if each.state == "queued"]
    found = [client.why(each.project, each.name, advice=False) for each in waiting[:REASONS_MAX]]
    return [why.words for why in found if why.state == "queued" and why.code not in AS_IT_SHOULD]


def read_files(files: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Every document of all files, each with words for where it stands."""
    places = [each for file in files for each in read_file(file)]
    if not places:
        raise Failure(f"{', '.join(files)}: there is no workload in it", exit_code=USAGE)
    return places


def read_file(file: str) -> Iterator[tuple[str, Any]]:
    """Every document of a file, each with words for where it stands."""
    import ryaml  # noqa: PLC0415  (only where files are read)

    from roost.cli.each_file import directory_of, with_values  # noqa: PLC0415

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
    flat = [each for document in documents for each in (document if isinstance(document, list) else [document])]
    flat = [document for document in flat if document is not None]
    for number, document in enumerate(flat, start=1):
        where = file if len(flat) == 1 else f"{file}: workload {number}"
        yield where, with_values(document, where, directory_of(file))


@contextmanager
def explained_where(places: list[tuple[str, Any]]) -> Iterator[None]:
    """Tell what the server says of a document with the file in which it stands."""
    from roost.client.errors import ApiError  # noqa: PLC0415

    try:
        yield
    except ApiError as error:
        if error.code.startswith("plan_"):
            raise Failure(error.message, error.hint, exit_code_of(error)) from None
        where, field = _where(places, error.path)
        raise Failure(f"{where}: {field}{error.message}", error.hint, exit_code_of(error)) from None


def _submit(client: "Client", places: list[tuple[str, Any]], plan: str) -> list["Workload"]:
    """Each workload; its `result` says what became of it."""
    documents = [document for _, document in places]
    if len(documents) == 1:
        return [client.submit_new(documents[0], same_ok=True, plan=plan)[0]]
    return client.submit_batch(documents, same_ok=True, plan=plan)


def _where(places: list[tuple[str, Any]], path: str) -> tuple[str, str]:
    """The document and the field that a path of the server's answer points at: [2].resources.cpu."""
    number = 0
    if path.startswith("["):
        head, _, path = path[1:].partition("]")
        number = int(head) if head.isdigit() and int(head) < len(places) else 0
        path = path.lstrip(".")
    return places[number][0], f"{path}: " if path and path != "$" else ""
