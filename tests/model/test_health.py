"""The `health` block: how a document says whether its runs are well, and what is refused."""

from typing import Any

import pytest

from roost.model.errors import Invalid
from roost.model.spec.document import check_document, read_document
from roost.model.spec.service import Check, check_of


def check(**fields: Any) -> Check:
    document = read_document({"name": "web", "kind": "service", "command": "x", "ports": {"web": 0}, "health": fields})
    check_document(document)
    found = check_of(document.health, document.ports, document.kind, "health")
    assert found is not None
    return found


def test_a_check_is_a_command_a_connection_or_a_request() -> None:
    assert check(command="probe x").argv == ("/bin/sh", "-c", "probe x")
    assert check(command=["probe", "x"]).argv == ("probe", "x")
    assert check(tcp="web") == Check(port="web")
    assert check(http="/healthz", port="web") == Check(port="web", path="/healthz")
    assert check(tcp=80, timeout="60s", interval="100ms", start=0, restart=False) == Check(
        port=80, timeout_ms=60_000, interval_ms=100, start_ms=0, restart=False
    )


@pytest.mark.parametrize(
    "fields, path",
    [
        ({}, "health"),
        ({"tcp": "web", "command": "x"}, "health"),
        ({"tcp": "web", "port": "web"}, "health.port"),
        ({"tcp": "api"}, "health.tcp"),
        ({"tcp": 0}, "health.tcp"),
        ({"http": "/"}, "health.port"),
        ({"http": "healthz", "port": 80}, "health.http"),
        ({"http": "/a\r\nHost: b", "port": 80}, "health.http"),
        ({"command": ["a\0b"]}, "health.command"),
        ({"tcp": 80, "interval": "99ms"}, "health.interval"),
        ({"tcp": 80, "timeout": 0}, "health.timeout"),
        ({"tcp": 80, "timeout": "61s"}, "health.timeout"),
        ({"tcp": 80, "failures": 0}, "health.failures"),
        ({"tcp": 80, "successes": 1_001}, "health.successes"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as refused:
        check(**fields)
    assert refused.value.path == path
