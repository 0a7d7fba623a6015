"""roost delete: finished work goes, with its logs; what runs is refused."""

import json
from pathlib import Path

from tests.cli.serving import up


def test_finished_work_is_deleted_and_running_work_is_refused(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        served.roost("run", "--name", "short", "--", "echo", "hello")
        served.roost("run", "--name", "other", "--", "echo", "hello")
        served.roost("run", "-d", "--name", "long", "--", "sleep", "600")
        refused = served.roost("delete", "long")
        assert refused.returncode == 1 and b"cancel it" in refused.stderr
        assert served.roost("delete", "short").stderr == b"roost: short is deleted\n"
        done = served.roost("delete", "other", "--json")
        assert [item["name"] for item in json.loads(done.stdout)] == ["other"]
        assert served.roost("logs", "short").returncode != 0
        assert not list(tmp_path.glob("logs/default/short/*"))
        assert served.roost("delete", "long.0").returncode == 2
