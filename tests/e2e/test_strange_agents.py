"""Strangers on the agents' port of a real server: garbage, and a second machine of the same name."""

import os
import socket
import subprocess
import sys

import grpc
from roost_lab.bench.product import Product

from roost.agent.connection.identity import NodeIdentity, credentials_of
from roost.model.records.enrolment import SERVER_NAME


def test_garbage_on_the_agents_port_disturbs_no_client() -> None:
    with Product(agents=1) as product:
        address = ("127.0.0.1", product.agents_port)
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", os.urandom(50_000), b""):
            for _ in range(5):
                with socket.create_connection(address) as connection:
                    try:
                        connection.sendall(sent)
                    except OSError:
                        continue
        with grpc.insecure_channel(product.agents_address) as channel:
            call = channel.stream_stream("/roost.agent.v1.Agents/Connect")
            assert _code(call(iter([b"\xff"]))) == grpc.StatusCode.UNAVAILABLE
        bundle = NodeIdentity(str(product.data / "node-1")).read()
        assert bundle is not None
        options = [("grpc.ssl_target_name_override", SERVER_NAME)]
        with grpc.secure_channel(product.agents_address, credentials_of(bundle), options=options) as channel:
            call = channel.stream_stream("/roost.agent.v1.Agents/Connect")
            assert _code(call(iter([b"\xff" * 100]))) == grpc.StatusCode.INVALID_ARGUMENT
        product.client.workloads.run_to_end({"name": "after", "command": ["/bin/true"]}, timeout_s=30)
        assert product.client.instances.get("default", "after").state == "succeeded"


def test_a_second_machine_of_the_same_name_cannot_join_until_the_first_is_gone() -> None:
    with Product(agents=1) as product:
        token = product.client.join_tokens.create(uses=2).token
        options = ["--join", token, "--name", "node-1", "--dir", str(product.data / "imposter")]
        argv = [sys.executable, "-m", "roost", "agent", *options]
        refused = subprocess.run(argv, capture_output=True, timeout=30)
        assert refused.returncode == 1
        assert b"another machine has joined as node-1" in refused.stderr
        first = product._processes.pop()
        first.terminate()
        first.wait()
        product.wait_until(lambda: product.client.status().nodes.get("stopped", 0) == 1)
        with (product.data / "out").open("wb") as out:
            successor = subprocess.Popen(argv, stdout=out, stderr=out)
        try:
            product.wait_until(lambda: product.client.status().nodes.get("ready", 0) == 1)
            one, two = ((product.data / name / "identity").read_text() for name in ("node-1", "imposter"))
            assert one != two
        finally:
            successor.terminate()
            successor.wait()


def _code(call: grpc.Call) -> grpc.StatusCode:
    try:
        list(call)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK
