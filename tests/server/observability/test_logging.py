"""Say: lines for the operator that never make the server wait."""

import logging
import os
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from roost.server.observability import logging as observability_logging


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave logging as it was found."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            pass


def lines(reading: int) -> list[bytes]:
    found = b""
    try:
        while part := os.read(reading, 1 << 20):
            found += part
    except BlockingIOError:
        pass
    return found.splitlines()


def test_machines_get_json(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    observability_logging.configure("info", "json", writing)
    log = observability_logging.logger("engine")
    log.info("placed", node="n1", count=3, odd={1, 2})
    log.debug("not reported")
    logging.getLogger("library").warning("from %s", "elsewhere")
    try:
        raise ValueError("a defect")
    except ValueError:
        log.error("failed", exc_info=True)
    first, second, third = [msgspec.json.decode(line) for line in lines(reading)]
    assert (first["level"], first["from"], first["event"], first["node"]) == ("info", "engine", "placed", "n1")
    assert first["time"].endswith("Z") and first["count"] == 3
    assert (second["level"], second["from"], second["event"]) == ("warning", "library", "from elsewhere")
    assert "ValueError: a defect" in third["trace"]


def test_people_get_words(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    observability_logging.configure("debug", "text", writing)
    observability_logging.logger("server").warning("node n1 is lost", cause="not heard\nfor long")
    (line,) = lines(reading)
    assert line.endswith(b"warning: node n1 is lost cause=not heard\\nfor long")


def test_levels_can_be_asked_for(pipe: tuple[int, int]) -> None:
    observability_logging.configure("warning", "json", pipe[1])
    assert not observability_logging.is_enabled("info") and observability_logging.is_enabled("error")


def test_a_reader_that_stops_reading_does_not_stop_the_server(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    sink = observability_logging.LineSink(writing)
    line = b"x" * 999
    for _ in range(5_000):  # five megabytes into a pipe of 64 KiB, and it is not read
        sink.write(line)
    assert sink.dropped > 3_000
    seen = 0
    while sink._waiting:
        seen += len(lines(reading))
        sink.flush()
    rest = lines(reading)
    assert b"lines are missing here" in rest[-1]
    sink.write(b"again")
    assert lines(reading) == [b"again"]


def test_a_reader_that_is_gone_is_no_error(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    sink = observability_logging.LineSink(writing)
    os.close(reading)
    for _ in range(3):
        sink.write(b"this is lost")
    assert not sink._waiting
