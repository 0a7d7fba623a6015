"""The server's log: one line per event on stderr, as JSON or, on a terminal, as text.

A line never makes the server wait: if nothing reads (a stopped terminal, a full pipe), lines are kept up to a limit and
then dropped, and the next line that is written says how many are missing.
"""

import logging
import os
import select
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Literal

import msgspec

if "rich" in sys.modules:
    import structlog
else:
    # structlog imports rich for coloured tracebacks, which are not used here: a tenth of the start-up time.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        del sys.modules["rich"]

Form = Literal["auto", "json", "text"]
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

WRITE_BYTES_MAX = 4_096  # what a writable pipe takes without blocking (PIPE_BUF)
WAITING_BYTES_MAX = 1 << 20  # some thousand lines: minutes of a quiet server, a second of a busy one

LINES_MAX = 10  # of one kind, per LINES_EVERY_S: a scanner must not fill the operator's disk
LINES_EVERY_S = 10.0

Fields = MutableMapping[str, Any]


def configure(level: str = "info", form: Form = "auto", descriptor: int = 2) -> "LineSink":
    """Log everything from this level on, also what libraries log through the standard library."""
    sink = LineSink(descriptor)
    is_text = form == "text" or (form == "auto" and os.isatty(descriptor))
    render = _render_text if is_text else _render_json
    structlog.configure(
        processors=[render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *names: _LineLogger(sink, *names),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), handlers=[_Bridge(sink, render)], force=True)
    return sink


def logger(name: str) -> Any:
    return structlog.get_logger(name)


def is_enabled(level: str) -> bool:
    """Whether lines of this level are written: making them may cost more than writing them."""
    return bool(structlog.get_logger().is_enabled_for(LEVELS[level]))


class RateLimitedLogger:
    """Lines that any client or agent can cause: some are written, and the number of the others."""

    def __init__(self, name: str) -> None:
        self._log = logger(name)
        self._lines = 0
        self._since_s = 0.0

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def _write(self, level: str, event: str, fields: Fields) -> None:
        # The method of the level is looked up only for a line that is written: structlog binds a new logger each time.
        now = time.monotonic()
        if now - self._since_s >= LINES_EVERY_S:
            if self._lines > LINES_MAX:
                getattr(self._log, level)("more lines of this kind were left out", number=self._lines - LINES_MAX)
            self._lines, self._since_s = 0, now
        self._lines += 1
        if self._lines <= LINES_MAX:
            getattr(self._log, level)(event, **fields)


class LineSink:
    """Writes lines to a descriptor. `write` never waits and never raises."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._waiting = bytearray()
        self.dropped = 0

    def write(self, line: bytes) -> None:
        if len(self._waiting) + len(line) > WAITING_BYTES_MAX:
            self.dropped += 1
        else:
            self._waiting += line
            self._waiting += b"\n"
        self.flush()

    def flush(self) -> None:
        while self._waiting and any(events & select.POLLOUT for _, events in self._poll.poll(0)):
            try:
                written = os.write(self._descriptor, memoryview(self._waiting)[:WRITE_BYTES_MAX])
            except OSError:  # the reader is gone or the disk is full, and this is where it would be reported
                self._waiting.clear()
                return
            del self._waiting[:written]
        if self.dropped and not self._waiting:
            missing, self.dropped = self.dropped, 0
            self.write(b"(%d lines are missing here: the reader was too slow)" % missing)


class _LineLogger:
    """What structlog calls with the rendered line. All levels are written alike."""

    def __init__(self, sink: LineSink, name: str = "") -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = sink.write


class _Bridge(logging.Handler):
    """Lines of the standard library's logging."""

    def __init__(self, sink: LineSink, render: Callable[[Any, str, Fields], bytes]) -> None:
        super().__init__()
        self._sink, self._render = sink, render

    def emit(self, record: logging.LogRecord) -> None:
        fields: Fields = {"event": record.getMessage(), "exc_info": record.exc_info}
        self._sink.write(self._render(_LineLogger(self._sink, record.name), record.levelname.lower(), fields))


def _render_json(logger: Any, level: str, fields: Fields) -> bytes:
    event, trace = _event_and_trace(fields)
    line = {"time": _clock("%Y-%m-%dT%H:%M:%S") + "Z", "level": level, "from": logger.name, "event": event, **fields}
    return msgspec.json.encode({**line, "trace": trace} if trace else line, enc_hook=str)


def _render_text(_: Any, level: str, fields: Fields) -> bytes:
    event, trace = _event_and_trace(fields)
    rest = "".join(f" {name}={value}" for name, value in fields.items())
    mark = "" if level == "info" else f"{level}: "
    line = _sanitised(f"{_clock('%H:%M:%S')} {mark}{event}{rest}")
    return (line + (f"\n{trace}" if trace else "")).encode(errors="replace")


def _sanitised(line: str) -> str:
    """One line without control characters: it may quote what a client has sent."""
    if line.isprintable():
        return line
    return "".join([letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line])


def _event_and_trace(fields: Fields) -> tuple[str, str]:
    structlog.processors.format_exc_info(None, "", fields)
    return fields.pop("event", ""), fields.pop("exception", "")


def _clock(form: str) -> str:
    now = time.time()
    return f"{time.strftime(form, time.gmtime(now))}.{int(now * 1000) % 1000:03d}"
