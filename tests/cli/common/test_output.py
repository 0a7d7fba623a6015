"""What people read: times, amounts, tables; and the sinks that logs go through."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from roost.cli import root
from roost.cli.common.exit_codes import Failure
from roost.cli.common.format import ago, amount, plain, took
from roost.cli.common.log_follow import JsonSink, LogSink, PrefixSink
from roost.cli.common.output import echo_err, print_fields, print_json, print_table
from roost.cli.common.targets import Target
from roost.schema.feed import AttemptView, EndingView, MissingView

FLEET = "{nodes: [{name: n1, cpu: 2}], workloads: [{name: a}]}"


@pytest.mark.parametrize(
    ("at_ms", "message"), [(None, "-"), (99_500, "now"), (96_999, "3s ago"), (0, "-"), (100_500, "now")]
)
def test_ago(at_ms: int | None, message: str) -> None:
    assert ago(at_ms, 100_000) == message


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [(None, None, "-"), (1_000, 1_250, "250ms"), (1_000, None, "1m39s"), (1_000, 2_500, "1.5s")],
)
def test_took(start: int | None, end: int | None, message: str) -> None:
    assert took(start, end, 100_000) == message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("cpu_milli", 1_500, "1.5"), ("memory", 4 << 30, "4GiB"), ("gpu_milli", 2_000, "2"), ("licence", 3, "3")],
)
def test_amounts(name: str, value: int, message: str) -> None:
    assert amount(name, value) == message
    assert plain("cpu_milli") == "cpu"


def test_tables_are_aligned_and_an_empty_one_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "STATE"), [("a", "queued"), ("longer", "failed")])
    assert capsys.readouterr().out == "NAME    STATE\na       queued\nlonger  failed\n"
    print_table(("NAME", "STATE"), [])
    assert capsys.readouterr().out == ""


def test_json_for_programs_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([{"a": 1}])
    out = capsys.readouterr().out
    assert json.loads(out) == [{"a": 1}]
    assert out.count("\n") == 1


def written(kind: type[LogSink], capfdbinary: Any) -> bytes:
    sink = kind(Target("default", "x", 3))
    sink.write(b"one\ntw")
    sink.attempt(AttemptView(2, "node-2", "lost"))
    sink.write(b"o\n\xff")
    sink.end(EndingView("succeeded", 2, "exit code 0", 0))
    return capfdbinary.readouterr().out  # type: ignore[no-any-return]


def test_bytes_of_one_instance_are_untouched(capfdbinary: Any) -> None:
    assert written(LogSink, capfdbinary) == b"one\ntwo\n\xff"


def test_lines_of_several_instances_carry_their_names(capfdbinary: Any) -> None:
    assert written(PrefixSink, capfdbinary) == b"x.3 | one\nx.3 | two\nx.3 | \xff\n"


def test_events_are_one_line_of_json_each(capfdbinary: Any) -> None:
    lines = [json.loads(line) for line in written(JsonSink, capfdbinary).splitlines()]
    assert [line["event"] for line in lines] == ["output", "attempt", "output", "end"]
    assert lines[0] == {
        "event": "output", "project": "default", "name": "x", "index": 3, "stream": "stdout", "data": "b25lCnR3",
    }  # fmt: skip
    assert (lines[3]["state"], lines[3]["exit_code"]) == ("succeeded", 0)


@pytest.mark.parametrize(
    ("kind", "out", "err"),
    [(LogSink, b"one\ntwo", b"er\n\xff"), (PrefixSink, b"x.3 | one\nx.3 | two\n", b"x.3 | er\nx.3 | \xff\n")],
)
def test_a_separate_stderr_goes_to_stderr(kind: type[LogSink], out: bytes, err: bytes, capfdbinary: Any) -> None:
    sink = kind(Target("default", "x", 3))
    sink.write(b"one\ntw")
    sink.write(b"er\n", err=True)
    sink.write(b"\xff", err=True)
    sink.write(b"o")
    sink.end(EndingView("succeeded", 1, "exit code 0", 0))
    assert capfdbinary.readouterr() == (out, err)


def test_json_says_which_stream_and_writes_to_stdout_alone(capfdbinary: Any) -> None:
    JsonSink(Target("default", "x", 3)).write(b"er\n", err=True)
    JsonSink(Target("default", "x", 3)).missing(MissingView(1, 4, "n1", "stderr"))
    out, err = capfdbinary.readouterr()
    assert ([json.loads(line)["stream"] for line in out.splitlines()], err) == (["stderr", "stderr"], b"")


def test_a_terminal_sees_states_in_colour_and_lines_that_fit(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("roost.cli.common.output._terminal_width", lambda _: 24)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    print_table(("NAME", "STATE", "CAUSE"), [("a", "failed", "2 failed, 1 succeeded, and more")])
    header, row = capsys.readouterr().out.splitlines()
    assert header == "\x1b[1mNAME  STATE   CAUSE\x1b[0m"
    assert row == "a     \x1b[31mfailed\x1b[0m  2 failed,…"


def test_the_widest_columns_shrink_to_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("roost.cli.common.output._terminal_width", lambda _: 60)
    long = "a-very-long-name-of-a-workload-that-fills-a-whole-terminal-line-0001"
    print_table(("TIME", "OBJECT", "EVENT", "REASON"), [("14:30:00.123", long, "placed", "by least_loaded, score 0.5")])
    header, row = capsys.readouterr().out.splitlines()
    assert len(row) <= 60
    assert row.split("  ") == ["14:30:00.123", "a-very-long-name-…", "placed", "by least_loaded, …"]
    assert header.split() == ["TIME", "OBJECT", "EVENT", "REASON"]


def test_text_of_others_cannot_command_the_terminal(capsys: Any) -> None:
    print_table(("NAME", "CAUSE"), [("a", "\x1b[2Jgone\nnext")])
    print_fields({"Command": "echo 'two\nlines'\x07"}, 12)
    echo_err("exit \x1b]0;title\x07")
    Failure("no \x1b[2J", "do\nthis").show()
    out, err = capsys.readouterr()
    assert out == "NAME  CAUSE\na     \\x1b[2Jgone\\nnext\nCommand:    echo 'two\n            lines'\\x07\n"
    assert err == "roost: exit \\x1b]0;title\\x07\nroost: no \\x1b[2J\n       do\nthis\n"


def test_no_color_holds_for_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(**env: str) -> str:
        return CliRunner(env=env).invoke(root, ["sim", "place", "-"], input=FLEET, color=True).output

    assert "\x1b[1m" in typed()
    assert "\x1b" not in typed(NO_COLOR="1")
