"""The server is killed again and again under load: nothing accepted is lost, nothing that ran is run again."""

import threading
from collections import Counter
from pathlib import Path

import pytest
from roost_lab.bench.product import Product

from roost.client import Client
from roost.client.errors import ApiError, Unreachable

KILLS = 20
JOBS = 600
BATCH = 5


def test_twenty_kills_lose_nothing_and_restart_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_LEASE_MS", "60000")  # a server that comes back late on a busy machine costs no lease
    ran = tmp_path / "ran"
    ran.touch()
    with Product(agents=2, cpu="8") as product:
        accepted: list[str] = []
        submitting = threading.Thread(target=_submit, args=(product, ran, accepted))
        submitting.start()
        for _ in range(KILLS):
            before = len(_lines(ran))
            goal = min(before + 10, JOBS)
            product.wait_until(lambda goal=goal: len(_lines(ran)) >= goal or not submitting.is_alive())
            product.kill_server()
            product.start_server()
        submitting.join()
        product.client.workloads.wait([("default", name) for name in accepted], timeout_s=60)

        runs = Counter(_lines(ran))
        stories = {name: product.client.instances.get("default", name) for name in accepted}
        assert {name: runs[name] for name in accepted} == dict.fromkeys(accepted, 1)
        assert {story.state for story in stories.values()} == {"succeeded"}
        assert {story.attempt for story in stories.values()} == {1}
        assert not [name for name, times in runs.items() if times > 1]
        product.wait_until(lambda: _used(product.client) == {0})


def _submit(product: Product, ran: Path, accepted: list[str]) -> None:
    """What was answered is accepted; what was not answered may have been taken or not, and is left alone."""
    with Client(product.client.url, product.admin_token) as client:
        for start in range(0, JOBS, BATCH):
            names = [f"job-{number}" for number in range(start, start + BATCH)]
            script = f"echo $ROOST_WORKLOAD >> {ran}; sleep 0.05"
            documents = [{"name": name, "command": script} for name in names]
            try:
                accepted += [workload.name for workload in client.workloads.submit_batch(documents)]
            except (Unreachable, ApiError):
                product.wait_until(lambda: client.status().ready)


def _lines(ran: Path) -> list[str]:
    return ran.read_text().split()


def _used(client: Client) -> set[int]:
    return {room.used for node in client.nodes.list() for room in node.resources.values()}
