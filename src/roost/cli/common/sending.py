"""Files of this machine that a command sends before it submits work, with progress on a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from roost.cli.common.exit_codes import USAGE, Failure
from roost.cli.common.transfer_bar import TransferBar
from roost.client import Client
from roost.client.errors import CannotSend
from roost.client.files.inputs import with_digests
from roost.schema.files import FileSetView

MADE_UP = "sha256:" + "0" * 64


def send_paths(client: Client, paths: Mapping[str, Path], project: str) -> FileSetView:
    """Send paths of this machine, by their path in the work directory."""
    with TransferBar("sending") as bar:
        return client.files.send(dict(paths), project, sent=bar.moved, read=bar.read)


def send_inputs(client: Client, places: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Documents, each with its place for errors, with digests in place of paths of this machine. Each is sent once."""
    known: dict[tuple[str, str], str] = {}

    def send(paths: dict[str, Path], project: str) -> str:
        key = (repr(paths), project)
        if key not in known:
            known[key] = send_paths(client, paths, project).digest
        return known[key]

    done: list[tuple[str, Any]] = []
    for where, document in places:
        try:
            done.append((where, with_digests(document, send)))
        except CannotSend as error:
            raise Failure(f"{where}: {error}", error.hint, USAGE) from None
    return done


def checked_inputs(document: Any, where: str) -> Any:
    """A document with a made-up digest in place of paths of this machine, which are there. Nothing is sent."""

    def check(paths: dict[str, Path], project: str) -> str:
        for path in paths.values():
            if not path.exists():
                raise CannotSend(str(path), "No such file or directory")
        return MADE_UP

    try:
        return with_digests(document, check)
    except CannotSend as error:
        raise Failure(f"{where}: {error}", error.hint, USAGE) from None


def sent_places(values: Sequence[str]) -> dict[str, Path]:
    """PATH[:TO] of --send: paths of this machine by their path in the work directory. Raises UsageError."""
    found: dict[str, Path] = {}
    for value in values:
        path, colon, to = (value, "", "") if Path(value).exists() else value.rpartition(":")
        if not colon:
            path = value
        name = Path(path).name if Path(path).name not in ("", "..") else Path(path).resolve().name
        place = to.strip("/") if to and (Path(path).is_dir() or not to.endswith("/")) else f"{to}{name}"
        if place in found:
            raise click.UsageError(f"--send: {found[place]} and {path} would both be {place} in the work directory")
        found[place] = Path(path)
    return found
