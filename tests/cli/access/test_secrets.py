"""roost secrets: values come from a pipe or are typed unseen, and are never shown."""

import json
import os
import pty
import subprocess
from pathlib import Path

from tests.cli.conftest import Type
from tests.cli.serving import DEADLINE_S, ROOST, Served

VALUE = b"planted-11ee"


def test_set_list_and_remove(typed: Type) -> None:
    done = typed("secrets", "set", "web/db", stdin=VALUE + b"\n")
    assert done.exit_code == 0 and "secret web/db is set: 12 bytes" in done.stderr
    shown = typed("secrets", "list", "--project", "web")
    assert shown.stdout.split()[:5] == ["SECRET", "BYTES", "CHANGED", "BY", "STATE"]
    assert "web/db" in shown.stdout and "root" in shown.stdout and "ok" in shown.stdout
    (entry,) = json.loads(typed("secrets", "list", "-p", "web", "--json").stdout)
    assert (entry["name"], entry["size"], entry["readable"]) == ("db", 12, True)
    assert VALUE.decode() not in shown.stdout + done.stdout + done.stderr
    assert "0 secrets were sealed again" in typed("secrets", "reseal").stderr
    assert "secret web/db is deleted" in typed("secrets", "remove", "web/db").stderr
    assert "project web has no secrets" in typed("secrets", "list", "-p", "web").stderr


def test_a_name_alone_is_of_the_default_project(typed: Type) -> None:
    assert "secret default/alone is set" in typed("secrets", "set", "alone", stdin=VALUE).stderr
    assert typed("secrets", "remove", "default/alone").exit_code == 0


def test_exact_keeps_every_byte(typed: Type) -> None:
    assert "8 bytes" in typed("secrets", "set", "web/key", "--exact", stdin=b"\xff\xfe bin\r\n").stderr
    assert "6 bytes" in typed("secrets", "set", "web/key", stdin=b"\xff\xfe bin\r\n").stderr


def test_nothing_too_much_and_odd_names_are_refused(typed: Type) -> None:
    assert "standard input is empty" in typed("secrets", "set", "web/db", stdin=b"\n").stderr
    assert "32,768 bytes" in typed("secrets", "set", "web/db", stdin=b"x" * 40_000).stderr
    for name in ("a/b/c", "/db", "web/"):
        refused = typed("secrets", "set", name, stdin=VALUE)
        assert refused.exit_code == 2 and "is not like PROJECT/NAME" in refused.stderr
    assert typed("secrets", "set", "web/db", VALUE.decode()).exit_code == 2, "a value is never an argument"


def test_a_workload_that_names_what_is_not_there_gets_the_next_step(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: needs\ncommand: 'true'\nenv: {PASSWORD: {secret: nowhere}}\n")
    refused = typed("apply", "-f", str(file))
    assert refused.exit_code != 0 and "roost secrets set default/nowhere" in refused.stderr


def test_at_a_terminal_it_is_asked_for_twice_and_not_shown(server: Served) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*ROOST, "secrets", "set", "web/typed"], env=server.env, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    text = b""
    try:
        for mark in (b"Value", b"Once more"):
            while mark not in text:
                text += os.read(ours, 1_000)
            os.write(ours, VALUE + b"\n")
        while b"is set" not in text:
            text += os.read(ours, 1_000)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        os.close(ours)
    assert VALUE not in text and b"12 bytes" in text
