"""What a server answers about a job, against what the job wrote: whole, refused with a reason, or wrong."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from roost.client import Client
from roost.client.errors import ApiError, LogIncomplete, Unreachable
from roost.schema.work import InstanceView
from roost_lab.recovery.jobs import log_pieces, outputs_of
from roost_lab.recovery.plan import RecoveryJob

PROJECT = "default"
REFUSING = (ApiError, LogIncomplete, Unreachable)


class Answer(msgspec.Struct, frozen=True):
    """`size`: bytes that are right. `refused`: the reason why there are none now. `wrong`: what is not as written."""

    size: int = 0
    refused: str = ""
    wrong: str = ""


def compare_log(client: Client, job: RecoveryJob, attempt: int) -> Answer:
    """A log that is called complete has every byte; one that breaks off has a reason."""
    try:
        size, wrong = _difference(client.logs.pieces(PROJECT, job.name, attempt=attempt), log_pieces(job, attempt))
    except REFUSING as error:
        return Answer(refused=str(error))
    return Answer(size, wrong=wrong)


def compare_outputs(client: Client, job: RecoveryJob, instance: InstanceView) -> Answer:
    """All files of this attempt with all bytes, or the reason why they are absent."""
    outputs = instance.outputs
    if outputs is None:
        return Answer(wrong="it has no outputs, and no reason why")
    if outputs.gaps:
        return Answer(refused=outputs.gaps[0].message)
    with tempfile.TemporaryDirectory(prefix="roost-recovery-") as folder:
        try:
            client.files.get(outputs.digest, Path(folder, "got"))
        except REFUSING as error:
            return Answer(refused=str(error))
        found = dict(_digests(Path(folder, "got")))
    expected = outputs_of(job, instance.attempt)
    for path in sorted({*expected, *found}):
        if found.get(path) != expected.get(path):
            problem = "is missing" if path not in found else "was not written" if path not in expected else "differs"
            return Answer(wrong=f"output {path} of attempt {instance.attempt} {problem}")
    return Answer(outputs.size)


def _difference(pieces: Iterable[bytes], expected: Iterator[bytes]) -> tuple[int, str]:
    """How many bytes came, and how they differ from what was expected."""
    size, rest = 0, b""
    for piece in pieces:
        while len(rest) < len(piece) and (more := next(expected, b"")):
            rest += more
        if not rest.startswith(piece):
            return size, f"its log differs after byte {size}"
        rest = rest[len(piece) :]
        size += len(piece)
    if rest or next(expected, b""):
        return size, f"its log is called complete with {size} bytes, and has more"
    return size, ""


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                yield str(path.relative_to(folder)), hashlib.file_digest(file, "sha256").hexdigest()
