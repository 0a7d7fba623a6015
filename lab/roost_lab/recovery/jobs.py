"""Jobs whose input, log and outputs are known to the byte. Log and outputs have the attempt in every line."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from roost_lab.recovery.plan import RecoveryJob

LINE_BYTES = 16
PIECE_LINES = 1 << 16
PART_LINES = 10_000_000  # where the numbers of an output begin: no two have a line in common
LOST_MAX = 1_000

# The input is copied last: outputs of a run that was fetched in part would lack it, or have it torn.
SCRIPT = """
set -eu
mark=$(printf 'a%03d' "$ROOST_ATTEMPT")
mkdir -p out/small
part=0
for size in $SIZES; do
    part=$((part + 1))
    seq -f "$mark%011.0f" $((part * 10000000)) $((part * 10000000 + size / 16)) | head -c "$size" > "out/$part"
    seq -f "$mark%011.0f" $(((part - 1) * LINES + 1)) $((part * LINES))
    sleep "$PAUSE"
done
number=0
while [ $number -lt "$SMALL" ]; do
    echo "$mark $number" > "out/small/$number"
    number=$((number + 1))
done
cp data out/data
"""


def document(job: RecoveryJob, data: Path) -> dict[str, Any]:
    return {
        "name": job.name,
        "command": ["/bin/sh", "-c", SCRIPT],
        "env": {
            "SIZES": " ".join(map(str, job.parts)), "LINES": str(job.lines), "PAUSE": f"{job.pause_s:.2f}",
            "SMALL": str(job.small),
        },
        "inputs": [{"from": str(data), "to": "data"}],
        "outputs": ["out/**"],
        "resources": {"cpu": "250m", "memory": "16MiB"},
        "retries": {"max": LOST_MAX, "on": ["lost"]},
        "grace": "1s",
        "retention": "7d",
    }  # fmt: skip


def input_of(job: RecoveryJob) -> bytes:
    return Random(job.name).randbytes(job.input_bytes)


def log_pieces(job: RecoveryJob, attempt: int) -> Iterator[bytes]:
    """What an attempt that ran to its end has written."""
    last = job.lines * len(job.parts)
    for start in range(1, last + 1, PIECE_LINES):
        yield _lines(attempt, start, min(start + PIECE_LINES - 1, last))


def outputs_of(job: RecoveryJob, attempt: int) -> dict[str, str]:
    """The sha256 of each file that it leaves, by path."""
    found = {"out/data": _sha256(input_of(job))}
    for part, size in enumerate(job.parts, start=1):
        first = part * PART_LINES
        found[f"out/{part}"] = _sha256(_lines(attempt, first, first + size // LINE_BYTES)[:size])
    for number in range(job.small):
        found[f"out/small/{number}"] = _sha256(f"a{attempt:03d} {number}\n".encode())
    return found


def _lines(attempt: int, first: int, last: int) -> bytes:
    mark = f"a{attempt:03d}"
    return "".join([f"{mark}{number:011d}\n" for number in range(first, last + 1)]).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
