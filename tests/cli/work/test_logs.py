"""Logs that are too long: cut at the limit of the server, and every reader is informed."""

import json
from base64 import b64decode
from pathlib import Path

from tests.cli.serving import up


def test_a_log_is_cut_at_the_limit_and_says_so(tmp_path: Path) -> None:
    with up(tmp_path, "--log-limit", "1KiB") as served:
        served.roost("run", "--name", "long", "--", "sh", "-c", "head -c 5000 /dev/zero | tr '\\0' x")
        done = served.roost("logs", "long")
        assert done.returncode == 0
        assert done.stdout.startswith(b"x" * 1_024 + b"\n[roost: this log was cut here, after 1024 bytes (--log-limit)")
        assert len(done.stdout) < 1_200


def test_a_limit_below_a_screen_is_refused(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        done = served.roost("server", "--data", str(tmp_path / "other"), "--log-limit", "10")
        assert done.returncode != 0 and b"log_limit" in done.stderr


SCRIPT = "for n in 1 2 3 4; do echo out $n; echo err $n >&2; done; [ $ROOST_INDEX = 0 ] || exit 3"


def test_lines_are_chosen_by_tail_text_and_failure(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        served.roost("run", "--name", "job", "--count", "2", "--stderr", "separate", "--", "sh", "-c", SCRIPT)
        done = served.roost("logs", "job.0", "--tail", "2")
        assert (done.stdout, done.stderr) == (b"out 3\nout 4\n", b"err 3\nerr 4\n")
        assert served.roost("logs", "job.0", "--grep", "3", "--stream", "stdout").stdout == b"out 3\n"
        assert served.roost("logs", "job.0", "--since", "1h", "--stream", "stderr").stderr.count(b"err") == 4
        assert served.roost("logs", "job.0", "--since", "2999-01-01T00:00Z").stdout == b""
        stamped = served.roost("logs", "job.0", "--timestamps", "--stream", "stdout").stdout.splitlines()
        assert [line.partition(b" ")[2] for line in stamped] == [b"out %d" % number for number in range(1, 5)]
        assert all(line[:2] == b"20" and line[23:24] == b"Z" for line in stamped)
        failed = served.roost("logs", "job", "--failed", "--tail", "1", "--stream", "stdout")
        assert failed.stdout == b"out 4\n", "one instance has failed"
        followed = served.roost("logs", "job.0", "-f", "--tail", "1", "--stream", "stdout")
        assert followed.stdout == b"out 4\n"
        found = json.loads(served.roost("logs", "job.0", "--tail", "1", "--stream", "stdout", "--json").stdout)
        assert b64decode(found["data"]) == b"out 4\n"
        assert served.roost("logs", "job.0", "--since", "yesterday").returncode == 2


def test_stdout_of_a_run_in_a_pipe_has_no_byte_of_stderr(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        done = served.roost("run", "--", "sh", "-c", r"""printf '{"a": "\377"}'; echo warning >&2""")
        assert done.stdout == b'{"a": "\xff"}' and b"warning\n" in done.stderr
