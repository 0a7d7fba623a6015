"""An explanation that fails is unknown: the command that asked for it continues."""

import time

import pytest

from roost.cli.work.why import UNKNOWN, _show, _start, explain
from roost.client import Client
from roost.schema.why import EstimateView, WhyView
from tests.client.wires import answer, wire

BUSY = answer(b'{"code": "too_busy", "message": "too many questions"}', "503 Service Unavailable")


@pytest.mark.parametrize(
    "body",
    [BUSY, answer(b"{}"), answer(b"not JSON"), answer(b"<html>", "502 Bad Gateway"), answer(b"", "404 Not Found")],
)
def test_a_refused_or_broken_explanation_is_unknown(body: bytes) -> None:
    with wire(*[[body]] * 20) as server, Client(server.url, "token") as client:
        why = explain(client, "default", "train")
        assert (why.code, why.state) == (UNKNOWN, "queued")
        assert server.requests, "it was asked for"


@pytest.mark.parametrize("code, shown", [("insufficient_resources", True), ("unsatisfiable", False)])
def test_a_place_in_the_queue_is_shown_only_for_what_can_run(
    capsys: pytest.CaptureFixture[str], code: str, shown: bool
) -> None:
    _show(WhyView(instance="default/a.0", state="queued", message="waits", code=code, position=1))
    assert ("it is the next one" in capsys.readouterr().out) is shown


def test_a_start_that_is_known_to_the_second_has_no_band() -> None:
    now = time.time_ns() // 1_000_000
    sharp, wide = (EstimateView("by its timeout", now + 10_500, now + 10_500, now + late) for late in (10_500, 90_500))
    assert "between" not in _start(sharp) and "between" in _start(wide)
