"""Logs that are too long: cut at the limit of the server, and every reader is informed."""

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
