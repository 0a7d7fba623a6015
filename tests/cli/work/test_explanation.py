"""An explanation that fails is unknown: the command that asked for it continues."""

import pytest

from roost.cli.work.why import UNKNOWN, explain
from roost.client import Client
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
