"""The plan of the rounds of recovery: jobs whose every byte is known, and kills at random moments. A seed gives all."""

from random import Random
from typing import NamedTuple

STORES = ("sqlite", "memory", "postgres", "etcd")
SHARED = ("postgres", "etcd")  # with several servers, and blobs in S3
JOBS = 4  # of a round
LOG_BYTES = (1 << 10, 50 << 20)
PARTS_MAX = 8  # a log is written in so many parts, and an output after each
OUTPUT_BYTES = (1, 8 << 20)
SMALL_MAX = 200  # files of a few bytes beside them
INPUT_BYTES = (1, 4 << 20)
LASTS_S = (0.2, 4.0)
WITHIN_S = 6.0  # kills come in this time from the beginning of a round: while jobs are sent, run and end
KILLS_MAX = 3
DOWN_S = (0.0, 1.5)


class RecoveryJob(NamedTuple):
    name: str
    parts: tuple[int, ...]  # bytes of its outputs
    lines: int  # of its log, after each output
    small: int
    input_bytes: int
    pause_s: float


class Kill(NamedTuple):
    """kill -9. `target` is a random number: taken modulo the number of candidates."""

    at_s: float
    what: str
    target: int
    down_s: float


class Round(NamedTuple):
    jobs: list[RecoveryJob]
    kills: list[Kill]


def plan_round(seed: int, store: str, number: int, log_bytes_max: int = LOG_BYTES[1]) -> Round:
    """The first kill is of the leader, or of the only server; the others are of anything."""
    chance = Random(f"{seed}/{store}/{number}")
    jobs = [_draw_job(chance, f"round-{number:03d}-{index}", log_bytes_max) for index in range(JOBS)]
    kinds = ["leader", "agent", "keeper", "node", *(("server", "blobs") if store in SHARED else ())]
    whats = ["leader", *(chance.choice(kinds) for _ in range(chance.randrange(KILLS_MAX)))]
    kills = [
        Kill(chance.uniform(0, WITHIN_S), what, chance.randrange(1 << 16), chance.uniform(*DOWN_S)) for what in whats
    ]
    return Round(jobs, sorted(kills))


def _draw_job(chance: Random, name: str, log_bytes_max: int) -> RecoveryJob:
    parts = tuple(_size(chance, *OUTPUT_BYTES) for _ in range(chance.randint(1, PARTS_MAX)))
    lines = _size(chance, LOG_BYTES[0], log_bytes_max) // 16 // len(parts) + 1
    pause_s = chance.uniform(*LASTS_S) / len(parts)
    return RecoveryJob(name, parts, lines, chance.randrange(SMALL_MAX), _size(chance, *INPUT_BYTES), pause_s)


def _size(chance: Random, least: int, most: int) -> int:
    """All orders of magnitude are as likely."""
    return int(least * (most / least) ** chance.random())
