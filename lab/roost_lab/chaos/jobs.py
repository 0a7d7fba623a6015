"""The jobs of a chaos run: each writes down its start and end, and a log whose every byte is known in advance.

A job appends `begin` and `end` lines with its attempt to a ledger, one file per node, and waits until they are on the
disk. A fenced job holds a lock on a file of its own: if it does not get it, another attempt is alive, and it says so.
"""

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

LINES = (5, 5, 5, 40, 40, 40, 400, 400, 4_000)  # of a log: 300 bytes to 270 kB
PAUSES_MAX = 12
SHORT_S, LONG_S = (0.1, 2.0), (5.0, 10.0)  # how long jobs last; some longer than a lease and what comes after it
LONG = 0.25  # of the jobs
PADDING = "a line of a log whose bytes are counted"
LOST_MAX = 1_000  # losses of its node that a job survives: no run has as many

SCRIPT = """
note() {
    echo "$1 $ROOST_WORKLOAD $ROOST_ATTEMPT" >> "$LEDGER/$ROOST_NODE.ledger"
    sync "$LEDGER/$ROOST_NODE.ledger"
}
if [ -n "$FENCED" ]; then
    exec 9>> "$LEDGER/$ROOST_WORKLOAD.lock"
    flock --nonblock 9 || note overlap
fi
note begin
line=0
while [ $line -lt "$LINES" ]; do
    printf '%s %s %06d %s\\n' "$ROOST_WORKLOAD" "$ROOST_ATTEMPT" $line "$PADDING"
    line=$((line + 1))
    [ $((line % EVERY)) -ne 0 ] || sleep "$PAUSE"
done
note end
"""


class Job(NamedTuple):
    name: str
    lines: int
    fenced: bool
    pauses: int
    pause_s: float

    def document(self, ledger: Path) -> dict[str, Any]:
        variables = {
            "LEDGER": str(ledger), "FENCED": "yes" if self.fenced else "", "LINES": str(self.lines),
            "EVERY": str(max(1, self.lines // self.pauses)), "PAUSE": f"{self.pause_s:.2f}", "PADDING": PADDING,
        }  # fmt: skip
        return {
            "name": self.name,
            "command": ["/bin/sh", "-c", SCRIPT],
            "env": variables,
            "fenced": self.fenced,
            "resources": {"cpu": "250m", "memory": "16MiB"},
            "retries": {"max": LOST_MAX, "on": ["lost"]},
            "grace": "1s",
            "retention": "7d",  # no clock jumps that far
        }

    def log(self, attempt: int) -> bytes:
        """What an attempt that ran to its end has written."""
        lines = (f"{self.name} {attempt} {line:06d} {PADDING}\n" for line in range(self.lines))
        return "".join(lines).encode()


def draw_job(chance: Random, number: int) -> Job:
    lines = chance.choice(LINES)
    pauses = chance.randint(1, min(PAUSES_MAX, lines))
    lasts_s = chance.uniform(*(LONG_S if chance.random() < LONG else SHORT_S))
    return Job(f"job-{number:06d}", lines, chance.random() < 0.7, pauses, lasts_s / pauses)


class Entry(NamedTuple):
    """A line of a ledger: `begin`, `end` or `overlap` of an attempt."""

    what: str
    job: str
    attempt: int
    node: str


def read_ledgers(folder: Path) -> list[Entry]:
    """All lines of all nodes. The last one of a node that crashed may be cut off."""
    entries = []
    for path in sorted(folder.glob("*.ledger")):
        for line in path.read_text().splitlines(keepends=True):
            fields = line.split()
            if line.endswith("\n") and len(fields) == 3:
                entries.append(Entry(fields[0], fields[1], int(fields[2]), path.stem))
    return entries
