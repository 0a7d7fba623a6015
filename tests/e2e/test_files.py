"""Files of real runs: inputs and outputs, while agents, servers and machines die."""

import hashlib
import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from roost_lab.bench.product import Product

from roost.files.manifest import FileEntry, Manifest, decode, encode
from roost.ports.blobs import digest_of
from tests.components.seaweedfs import setting_of
from tests.e2e.test_agents import agent_of, instance, is_state, kill_agent, kill_node

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
        assert instance(shared, "wrong").message == "input data.bin: its bytes are others than its digest or size says"
        assert log_of(shared, "wrong") == ""


def test_an_array_fetches_a_shared_input_once_for_a_node() -> None:
    """Short runs: some are prefilled behind others whose input is on its way."""
    with site() as web, Product(agents=2, cpu="16") as product:
        submit(product, "array", f"[ $({SUM}) = {SHA256} ]", count=1_000, inputs=[web.input(to="in/data.bin")])
        (end,) = product.client.workloads.wait([("default", "array")], timeout_s=300)
        used = {found.node for found in product.client.instances.list("default", "array")}
        assert end.state == "succeeded" and web.requests == len(used) == 2


def test_an_agent_that_is_killed_while_it_fetches_begins_anew() -> None:
    with site() as web, Product(agents=1) as product:
        web.gate.clear()
        submit(product, "killed", SUM, inputs=[web.input(to="in/data.bin")])
        product.wait_until(lambda: web.requests)
        kill_agent(product)
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
        submit(product, "goes-on", SUM, inputs=[web.input(to="in/data.bin")], retries=1)
        product.wait_until(lambda: web.requests)
        product.kill_server()
        product.start_server()
        web.gate.set()
        product.wait_until(is_state(product, "goes-on", "succeeded"))
        assert web.requests == instance(product, "goes-on").attempt, "a second one only if the lease ended meanwhile"


# --- files that the server keeps --------------------------------------------------------------------------------------


def call(product: Product, method: str, path: str, body: bytes | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {product.admin_token}", "Content-Type": "application/octet-stream"}
    url = f"http://127.0.0.1:{product.api_port}/v1/projects/default/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=60) as answer:
        return bytes(answer.read())


def send(product: Product, files: dict[str, bytes]) -> str:
    """Files of a flat directory, as clients send them; the digest of the set."""
    entries = [FileEntry(name, 0o755, len(data), digest_of(data)) for name, data in sorted(files.items())]
    for data in files.values():
        call(product, "PUT", f"blobs/{digest_of(data)}?size={len(data)}", data)
    return str(msgspec.json.decode(call(product, "POST", "files", encode(Manifest(tuple(entries)))))["digest"])


def kept(product: Product, name: str) -> dict[str, bytes]:
    """The outputs of an instance: paths and bytes."""
    outputs = instance(product, name).outputs
    if outputs is None or not outputs.digest:
        return {}
    manifest = decode(call(product, "GET", f"files/{outputs.digest}"))
    return {file.path: call(product, "GET", f"blobs/{file.digest}") for file in manifest.files()}


def gaps(product: Product, name: str) -> list[tuple[str, str]]:
    outputs = instance(product, name).outputs
    assert outputs is not None
    return [(gap.problem, gap.path) for gap in outputs.gaps]


def test_a_run_gets_files_and_leaves_files(shared: Product) -> None:
    digest = send(shared, {"tool": b"#!/bin/sh\necho made > out/a\n", "data": DATA})
    command = "mkdir out && ./in/tool && cat in/data in/data > out/twice && echo no > other"
    submit(shared, "makes", command, inputs=[{"from": digest, "to": "in"}], outputs=["out/*"])
    shared.wait_until(is_state(shared, "makes", "succeeded"))
    assert kept(shared, "makes") == {"out/a": b"made\n", "out/twice": DATA * 2}
    assert gaps(shared, "makes") == []
    used = {"workload": "makes", "path": "out/a", "to": "from"}
    submit(shared, "uses", "cat from/out/a; ls from/out", inputs=[used])
    shared.wait_until(is_state(shared, "uses", "succeeded"))
    assert log_of(shared, "uses") == "made\na\n"


@pytest.mark.parametrize("links", ["yes", "no"])
def test_files_in_s3(links: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With links, no byte of a large file is collected by the server on its way to S3."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "large").write_bytes(large := os.urandom(3 << 20))
    (tmp_path / "tree" / "small").write_bytes(DATA)
    with Product(agents=1, options=["--blobs", setting_of(monkeypatch, f"&links={links}")]) as product:
        digest = product.client.files.send(tmp_path / "tree").digest
        command = "mkdir out && cat in/large in/small > out/both && cp in/small out/"
        submit(product, "makes", command, inputs=[{"from": digest, "to": "in"}], outputs=["out/*"])
        product.wait_until(is_state(product, "makes", "succeeded"))
        outputs = instance(product, "makes").outputs
        assert outputs is not None and outputs.digest and not outputs.gaps
        product.client.files.get(outputs.digest, tmp_path / "got")
        assert (tmp_path / "got/out/both").read_bytes() == large + DATA
        assert (tmp_path / "got/out/small").read_bytes() == DATA
        assert (product.data / "server" / "uploads").exists() == (links == "no")


def test_runs_that_fail_or_run_out_of_time_leave_files_too(shared: Product) -> None:
    outputs = ["*.log", {"path": "never", "when": "success"}]
    submit(shared, "fails", "echo partial > a.log; echo x > never; exit 3", outputs=outputs)
    submit(shared, "slow", "echo partial > a.log; sleep 600", outputs=outputs, timeout="1s", grace="1s")
    shared.wait_until(is_state(shared, "fails", "failed"))
    shared.wait_until(is_state(shared, "slow", "timed_out"))
    assert kept(shared, "fails") == kept(shared, "slow") == {"a.log": b"partial\n"}


def test_a_run_without_a_required_output_fails(shared: Product) -> None:
    submit(shared, "nothing", "ln -s /etc/passwd out", outputs=[{"path": "out", "required": True}, "none"])
    shared.wait_until(is_state(shared, "nothing", "failed"))
    assert gaps(shared, "nothing") == [("not_a_file", "out"), ("missing", "none")]
    assert kept(shared, "nothing") == {}


GATED = "while [ ! -e {0}/go ]; do sleep 0.01; done; head -c 20000000 /dev/zero > zeros; echo $ROOST_ATTEMPT > attempt"
ENDED = {"zeros": b"\0" * 20_000_000, "attempt": b"1\n"}


def test_outputs_outlive_the_agent_and_the_server_that_were_to_have_them(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        keeper = product.pids[-1]
        submit(product, "late", GATED.format(tmp_path), outputs=["zeros", "attempt"])
        product.wait_until(is_state(product, "late", "running"))
        product.kill_server()
        (tmp_path / "go").touch()
        product.wait_until(lambda: list(product.data.glob("*/work/*/attempt")))
        kill_agent(product)
        product.wait_until(lambda: agent_of(keeper))
        product.start_server()
        product.wait_until(is_state(product, "late", "succeeded"))
        assert (instance(product, "late").attempt, kept(product, "late")) == (1, ENDED)


def test_agents_that_are_killed_again_and_again_while_they_collect_lose_nothing(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        submit(product, "late", GATED.format(tmp_path), outputs=["zeros", "attempt"])
        product.wait_until(is_state(product, "late", "running"))
        (tmp_path / "go").touch()
        product.wait_until(lambda: list(product.data.glob("*/work/*/attempt")))
        for _ in range(3):
            kill_agent(product)
        product.wait_until(is_state(product, "late", "succeeded"))
        assert (instance(product, "late").attempt, kept(product, "late")) == (1, ENDED)


def test_a_machine_that_dies_while_it_collects_leaves_the_work_to_another(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        submit(product, "moves", GATED.format(tmp_path), outputs=["attempt"], retries=1)
        product.wait_until(is_state(product, "moves", "running"))
        product.kill_server()
        (tmp_path / "go").touch()
        product.wait_until(lambda: list(product.data.glob("*/work/*/attempt")))
        kill_node(product, product.pids[-1])
        product.start_server()
        product.start_agent("another")
        product.wait_until(is_state(product, "moves", "succeeded"))
        assert kept(product, "moves") == {"attempt": b"2\n"}
