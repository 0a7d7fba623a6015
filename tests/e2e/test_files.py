"""Files of real runs: inputs from URLs, while agents and servers die."""

import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from roost_lab.bench.product import Product

from tests.e2e.test_agents import agent_of, instance, is_state

DATA = os.urandom(100_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class Site:
    """A web server with one file, which it gives away while the gate is open."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/data.bin"
        self.gate = threading.Event()
        self.gate.set()
        self.requests = 0

    def input(self, **fields: Any) -> dict[str, Any]:
        return {"url": self.url, "sha256": SHA256} | fields


@contextmanager
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.requests += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            self.wfile.write(DATA[:1000])
            found.gate.wait(60)
            self.wfile.write(DATA[1000:])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Site(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield found
        finally:
            found.gate.set()
            server.shutdown()


@pytest.fixture(scope="module")
def shared() -> Iterator[Product]:
    with Product(agents=1, cpu="8") as product:
        yield product


def submit(product: Product, name: str, command: str, **fields: Any) -> None:
    product.client.workloads.submit({"name": name, "command": command, "retries": 0} | fields)


def log_of(product: Product, name: str) -> str:
    return product.client.logs.read("default", name).decode()


SUM = "sha256sum in/data.bin | cut -d' ' -f1"


def test_a_run_reads_its_input(shared: Product) -> None:
    with site() as web:
        submit(shared, "reads", SUM, inputs=[web.input(to="in/data.bin")])
        shared.wait_until(is_state(shared, "reads", "succeeded"))
        assert log_of(shared, "reads") == f"{SHA256}\n"


def test_a_file_with_another_digest_is_the_end_before_the_run_began(shared: Product) -> None:
    with site() as web:
        submit(shared, "wrong", "echo ran", inputs=[web.input(sha256="0" * 64)])
        shared.wait_until(is_state(shared, "wrong", "failed"))
        assert "data.bin: the file at the URL has another sha256" in str(instance(shared, "wrong").reason)
        assert log_of(shared, "wrong") == ""


def test_an_array_fetches_a_shared_input_once_for_a_node() -> None:
    """Short runs on one node: some are prefilled behind others whose input is on its way."""
    with site() as web, Product(agents=1, cpu="16") as product:
        submit(product, "array", f"[ $({SUM}) = {SHA256} ]", count=200, inputs=[web.input(to="in/data.bin")])
        (end,) = product.client.workloads.wait([("default", "array")], timeout_s=120)
        assert end.state == "succeeded" and web.requests == 1


def test_an_agent_that_is_killed_while_it_fetches_begins_anew() -> None:
    with site() as web, Product(agents=1) as product:
        keeper = product.pids[-1]
        web.gate.clear()
        submit(product, "killed", SUM, inputs=[web.input(to="in/data.bin")])
        product.wait_until(lambda: web.requests)
        os.kill(agent_of(keeper), signal.SIGKILL)
        product.wait_until(lambda: web.requests == 2)
        web.gate.set()
        product.wait_until(is_state(product, "killed", "succeeded"))
        assert (instance(product, "killed").attempt, log_of(product, "killed")) == (1, f"{SHA256}\n")
        assert not list(product.data.glob("*/inputs/draft-*")), "what the first agent left is gone"


def test_a_run_that_is_cancelled_while_its_input_is_fetched_never_begins() -> None:
    with site() as web, Product(agents=1) as product:
        web.gate.clear()
        submit(product, "unwanted", "echo ran", inputs=[web.input()])
        product.wait_until(lambda: web.requests)
        assert instance(product, "unwanted").state == "placed"
        product.client.workloads.cancel("default", "unwanted")
        product.wait_until(is_state(product, "unwanted", "cancelled"))
        web.gate.set()
        submit(product, "next", "true", inputs=[web.input()])
        product.wait_until(is_state(product, "next", "succeeded"))
        assert log_of(product, "unwanted") == ""


def test_a_server_that_is_killed_while_inputs_are_fetched_is_not_missed() -> None:
    with site() as web, Product(agents=1) as product:
        web.gate.clear()
        submit(product, "goes-on", SUM, inputs=[web.input(to="in/data.bin")])
        product.wait_until(lambda: web.requests)
        product.kill_server()
        product.start_server()
        web.gate.set()
        product.wait_until(is_state(product, "goes-on", "succeeded"))
        assert (instance(product, "goes-on").attempt, web.requests) == (1, 1)
