"""Comparing with what a job wrote: every way in which bytes can be wrong is seen."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from roost_lab.recovery.compare import Answer, compare_log, compare_outputs
from roost_lab.recovery.jobs import input_of, log_pieces
from roost_lab.recovery.plan import RecoveryJob

from roost.client.errors import LogIncomplete

JOB = RecoveryJob("round-000-0", (40,), 100_000, 1, 30, 0.0)
LOG = b"".join(log_pieces(JOB, 2))
FILES = {
    "out/1": b"".join(b"a002%011d\n" % line for line in range(10_000_000, 10_000_003))[:40],
    "out/small/0": b"a002 0\n",
    "out/data": input_of(JOB),
}


def answering(*pieces: bytes, missing: int = 0, files: Mapping[str, bytes] = {}) -> Any:
    def read(*_: object, **__: object) -> Iterator[bytes]:
        yield from pieces
        if missing:
            raise LogIncomplete(missing, "the node has them")

    def get(_: str, to: Path) -> None:
        for path, data in files.items():
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            (to / path).write_bytes(data)

    return cast(Any, SimpleNamespace(logs=SimpleNamespace(pieces=read), files=SimpleNamespace(get=get)))


def test_a_log_is_whole_in_any_pieces() -> None:
    assert len(LOG) == 1_600_000
    whole = Answer(len(LOG))
    assert compare_log(answering(LOG), JOB, 2) == whole
    assert compare_log(answering(LOG[:7], LOG[7:1_100_000], LOG[1_100_000:]), JOB, 2) == whole


@pytest.mark.parametrize(
    ("pieces", "wrong"),
    [
        ((LOG[:-16],), "its log is called complete with 1599984 bytes, and has more"),
        ((LOG, b"\n"), "its log differs after byte 1600000"),
        ((LOG[:100], LOG[101:]), "its log differs after byte 100"),
        ((b"".join(log_pieces(JOB, 1)),), "its log differs after byte 0"),
        ((), "its log is called complete with 0 bytes, and has more"),
    ],
)
def test_a_log_that_is_not_what_was_written_is_wrong(pieces: tuple[bytes, ...], wrong: str) -> None:
    assert compare_log(answering(*pieces), JOB, 2).wrong == wrong


def test_a_log_that_breaks_off_with_a_reason_is_refused() -> None:
    assert compare_log(answering(LOG[:10], missing=5), JOB, 2) == Answer(refused="the node has them")


def instance(**outputs: object) -> Any:
    found = SimpleNamespace(**{"digest": "sha256:0", "size": 77, "gaps": [], **outputs}) if outputs else None
    return SimpleNamespace(attempt=2, outputs=found)


def test_outputs_are_whole_or_absent_with_a_reason() -> None:
    assert compare_outputs(answering(files=FILES), JOB, instance(size=77)) == Answer(77)
    gap = SimpleNamespace(message="it could not be stored in time")
    assert compare_outputs(answering(), JOB, instance(gaps=[gap])) == Answer(refused="it could not be stored in time")


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({**FILES, "out/1": FILES["out/1"][:39]}, "output out/1 of attempt 2 differs"),
        ({**FILES, "out/data": b""}, "output out/data of attempt 2 differs"),
        ({"out/1": FILES["out/1"], "out/data": FILES["out/data"]}, "output out/small/0 of attempt 2 is missing"),
        ({**FILES, "out/2": b"x"}, "output out/2 of attempt 2 was not written"),
    ],
)  # fmt: skip
def test_torn_mixed_and_missing_outputs_are_wrong(files: Mapping[str, bytes], wrong: str) -> None:
    assert compare_outputs(answering(files=files), JOB, instance(size=77)) == Answer(wrong=wrong)


def test_no_outputs_without_a_reason_are_wrong() -> None:
    assert compare_outputs(answering(), JOB, instance()).wrong == "it has no outputs, and no reason why"
