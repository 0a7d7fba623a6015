"""Copies into and out of real runs, while agents, servers and runs end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from roost_lab.bench.product import Product

from roost.client.errors import ApiError
from tests.e2e.test_agents import is_state

LARGE = os.urandom(20 << 20)


@pytest.fixture(scope="module")
def shared() -> Iterator[Product]:
    with Product(agents=1, cpu="8") as product:
        yield product


def begin(product: Product, name: str, command: str = "sleep 600", **fields: object) -> None:
    product.client.workloads.submit({"name": name, "command": command, "retries": 0} | fields)
    product.wait_until(is_state(product, name, "running"))


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
