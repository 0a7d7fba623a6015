"""A node that is cut off: its fenced work runs elsewhere within five seconds, and never in two places at once."""

import time
from pathlib import Path

import pytest
from roost_lab.bench.product import Product

from tests.e2e.proxy import Proxy

MOVED_S_MAX = 5.0


@pytest.mark.serial
def test_work_of_a_node_that_is_cut_off_moves_and_never_runs_twice(tmp_path: Path) -> None:
    with Product(agents=0) as product, Proxy(("127.0.0.1", product.agents_port)) as wire:
        product.start_agent("far", server=wire.address)
        product.wait_until(lambda: product.client.status().agents_connected == 1)
        script = f"while :; do date +%s%N >> {tmp_path}/$ROOST_ATTEMPT; sleep 0.02; done"
        product.client.workloads.submit({"name": "ticker", "command": script})
        product.wait_until(lambda: _ticks(tmp_path, 1))
        product.start_agent("near")
        product.wait_until(lambda: product.client.status().agents_connected == 2)

        wire.cut()
        cut_at = time.monotonic()
        product.wait_until(lambda: _ticks(tmp_path, 2))
        moved_s = time.monotonic() - cut_at
        wire.heal()
        product.wait_until(lambda: product.client.status().nodes == {"ready": 2})
        product.wait_until(lambda: product.client.instances.get("default", "ticker").state == "running")

        assert moved_s <= MOVED_S_MAX
        assert _ticks(tmp_path, 1)[-1] < _ticks(tmp_path, 2)[0]
        instance = product.client.instances.get("default", "ticker")
        assert (instance.node, instance.attempt) == ("near", 2)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def _ticks(directory: Path, attempt: int) -> list[int]:
    """The moments at which an attempt was seen alive, by one clock for both."""
    path = directory / str(attempt)
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []
