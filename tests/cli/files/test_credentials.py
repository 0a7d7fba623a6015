"""`roost blobs credentials`: an operator rotates the keys of S3 while the server runs."""

import json
from pathlib import Path

import pytest
from roost_lab.components.seaweedfs import ACCESS_KEY, SECRET_KEY

from tests.cli.serving import Served, serving
from tests.components.seaweedfs import setting_of

GOOD = f"# keys\nAWS_ACCESS_KEY_ID={ACCESS_KEY}\nAWS_SECRET_ACCESS_KEY={SECRET_KEY}\n".encode()


def about_blobs(served: Served) -> list[dict[str, str]]:
    lines = json.loads(served.roost("doctor", "--json").stdout)["lines"]
    return [line for line in lines if line["about"] == "blobs"]


def test_credentials_are_set_shown_checked_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = setting_of(monkeypatch)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "revoked-4711")
    with serving(tmp_path, "server", "--store", "memory", "--blobs", setting) as served:
        before = served.roost("blobs", "credentials").stdout
        assert b"those that each server was started with" in before
        refused = served.roost("blobs", "credentials", "set", stdin=GOOD.replace(SECRET_KEY.encode(), b"wrong"))
        assert refused.returncode != 0 and b"S3 refuses the credentials" in refused.stderr
        none = served.roost("blobs", "credentials", "set", stdin=b"nothing")
        assert none.returncode == 2 and b"AWS_ACCESS_KEY_ID=..." in none.stderr
        done = served.roost("blobs", "credentials", "set", stdin=GOOD)
        assert done.returncode == 0, done.stderr
        shown = served.roost("blobs", "credentials", "--json").stdout
        assert json.loads(shown)["sealed"] is True
        assert [line["level"] for line in about_blobs(served)] == ["ok"]
        for output in (before, shown, done.stdout, done.stderr, refused.stderr):
            assert SECRET_KEY.encode() not in output and ACCESS_KEY.encode() not in output
        assert served.roost("blobs", "credentials", "remove").returncode == 0
        (line,) = about_blobs(served)
        assert line["level"] == "bad" and "roost blobs credentials set" in line["then"]
