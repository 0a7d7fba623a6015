"""Copies into and out of real runs, while agents, servers and runs end."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from roost_lab.bench.product import LONG_LEASE, Product

from roost.client import Client
from roost.client.errors import ApiError
from roost.schema.files import CopyView
from tests.e2e.test_agents import is_state, kill_agent

LARGE = os.urandom(20 << 20)


@pytest.fixture(scope="module")
def shared() -> Iterator[Product]:
    with Product(agents=1, cpu="8") as product:
        yield product


def begin(product: Product, name: str, command: str = "sleep 600", **fields: object) -> None:
    product.client.workloads.submit({"name": name, "command": command, "retries": 0} | fields)
    product.wait_until(is_state(product, name, "running"))


def copied_into(product: Product, source: Path) -> CopyView:
    """With a client of its own, as for another thread."""
    with Client(product.client.url, product.admin_token) as client:
        return client.files.copy_to(source, "default", "job")


def test_files_go_into_a_run_and_out_of_it(shared: Product, tmp_path: Path) -> None:
    begin(shared, "both", "sh -c 'mkdir out; until [ -e go ]; do sleep 0.05; done; cat go > out/seen; sleep 600'")
    (tmp_path / "large").write_bytes(LARGE)
    view = shared.client.files.copy_to(tmp_path / "large", "default", "both", "data/")
    assert (view.path, view.files, view.size) == ("data/large", 1, len(LARGE))
    (tmp_path / "go").write_text("here")
    assert shared.client.files.copy_to(tmp_path / "go", "default", "both").path == "go"
    shared.client.files.copy_from("default", "both", "data", tmp_path / "back")
    assert (tmp_path / "back" / "large").read_bytes() == LARGE

    def is_seen() -> bool:
        shared.client.files.copy_from("default", "both", "out/.", tmp_path / "out")
        return (tmp_path / "out" / "seen").exists()

    shared.wait_until(is_seen)
    assert (tmp_path / "out" / "seen").read_text() == "here"


def test_what_is_not_there_is_a_clear_error(shared: Product, tmp_path: Path) -> None:
    begin(shared, "lacks")
    with pytest.raises(ApiError) as refused:
        shared.client.files.copy_from("default", "lacks", "nothing", tmp_path / "x")
    assert (refused.value.status, refused.value.code) == (404, "no_such_file")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("killed", ["agent", "server"])
def test_a_copy_goes_on_when_its_agent_or_server_is_killed_and_is_never_seen_in_part(
    killed: str, tmp_path: Path
) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for number in range(500):
        (many / f"f{number}").write_bytes(LARGE[: number * 1_000])
    with Product(agents=1, options=LONG_LEASE) as product, ThreadPoolExecutor(1) as pool:
        begin(product, "job")
        (work,) = product.data.glob("*/work/*")
        copying = pool.submit(copied_into, product, many)
        staging = work.parent.parent / "copies"
        product.wait_until(lambda: copying.done() or list(staging.glob("*/*/*")), look_s=0.001)
        assert not (work / "many").exists() or len(list((work / "many").iterdir())) == 500
        if killed == "agent":
            kill_agent(product)
        else:
            product.kill_server()
            product.start_server()
        view = copying.result(120)
        assert (view.files, view.path) == (500, "many")
        assert {path.name: path.read_bytes() for path in (work / "many").iterdir()} == {
            path.name: path.read_bytes() for path in many.iterdir()
        }
        assert not list(staging.glob("*/*")), "nothing is left of its way"
