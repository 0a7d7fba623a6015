"""Runs of `roost up` on a machine that allows sandboxes: what they reach, and whose their files are."""

import os
from pathlib import Path

import pytest

from roost.agent.isolation import chosen_level
from tests.cli.serving import up, wait_until

SERVICE = b"""
name: web
kind: service
command: touch /tmp/ready; exec sleep 1000
health: {command: [sh, -c, 'test -e /tmp/ready && id -u >checked'], interval: 200ms}
"""


@pytest.fixture(autouse=True)
def best_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_AGENT_ISOLATION", "")
    if chosen_level("")[0] != "sandbox":
        pytest.skip("this machine offers no sandboxes")


def test_runs_are_in_sandboxes_by_default(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        assert "Runs are in sandboxes" in served.output()
        home = next(tmp_path.rglob("admin.token")).parent
        reads = f"cat {home}/*.token {home}/*.key {home}/*.toml; ls -A {home} | grep -v nodes; find {home} -type s"
        done = served.roost("run", "--", "sh", "-c", f"({reads}) 2>/dev/null; id -u")
        assert (done.returncode, done.stdout.split()) == (0, [str(user()).encode()])
        assert b"isolation=sandbox" in served.roost("nodes", "show", "node-1").stdout


def test_a_hidden_directory_can_be_read_if_the_operator_shows_it(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho it runs\ntouch $0\n")
    tool.chmod(0o777)
    (tmp_path / "hidden").mkdir()
    with up(tmp_path / "hidden") as served:
        assert served.roost("run", "--", str(tool)).returncode != 0
    (tmp_path / "shown").mkdir()
    with up(tmp_path / "shown", "--readable", str(tool.parent)) as served:
        done = served.roost("run", "--", str(tool))
        assert done.stdout == b"it runs\n" and done.returncode != 0 and b"Read-only file system" in done.stderr


def test_a_health_check_by_a_command_runs_where_its_service_is(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        assert served.roost("apply", "-f", "-", stdin=SERVICE).returncode == 0
        found = lambda: [path.read_text().strip() for path in tmp_path.rglob("work/*/checked")]  # noqa: E731
        wait_until(lambda: found() == [str(user())])


def user() -> int:
    return 1_900_000_000 if os.geteuid() == 0 else os.geteuid()


def test_files_sent_with_a_run_belong_to_its_user_and_outputs_are_kept(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("one\n")
    with up(tmp_path) as served:
        script = "echo two >>given && cp given out.txt && stat -c %u given"
        done = served.roost("run", "--send", f"{given}:given", "-o", "out.txt", "--", "sh", "-c", script)
        assert (done.returncode, done.stdout.split()) == (0, [str(user()).encode()]), done.stderr
