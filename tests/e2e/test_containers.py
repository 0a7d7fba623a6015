"""Containers on a real engine as work of every kind, through server, agent and keeper."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from roost_lab.bench.product import Product
from roost_lab.components.docker import IMAGE

from roost.client.errors import ApiError
from roost.client.tunnels import Tunnel
from roost.model.tunnels import TunnelEnd
from tests.cli.serving import wait_until
from tests.components.docker import shared_engine
from tests.e2e.test_agents import instance, is_state, kill_agent
from tests.e2e.test_exec import everything, sleepers

ALONE = {"network": "none"}
SMALL = {"cpu": "100m"}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One node with an engine, and the volume `data`, which can only be read."""
    folder = tmp_path_factory.mktemp("volume")
    (folder / "file").write_text("of the node\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_AGENT_DOCKER", f"unix://{shared_engine().socket}")
        patch.setenv("ROOST_AGENT_VOLUMES", f"data={folder}:ro")
        with Product(agents=1, cpu="8", options=("--lease", "60000")) as product:
            yield product


def submit(product: Product, name: str, **fields: Any) -> None:
    document = {"name": name, "image": IMAGE, "container": ALONE, "resources": SMALL, "retries": 0} | fields
    product.client.workloads.submit(document)


def finished(product: Product, name: str, state: str = "succeeded") -> bytes:
    """Its output, once it has ended."""
    product.client.workloads.wait([("default", name)], timeout_s=120)
    assert instance(product, name).state == state, instance(product, name).message
    return product.client.logs.read("default", name)


def own_containers(product: Product) -> int:
    return len(shared_engine().containers())


def test_a_job_has_its_work_directory_result_and_volume(product: Product) -> None:
    script = "cat /data/file; touch /data/new 2> /dev/null || echo kept; echo '[1]' > $ROOST_RESULT; pwd; echo x > out"
    submit(
        product, "job", command=script, volumes={"data": {"to": "/data", "read_only": True}},
        outputs=["out"],
    )  # fmt: skip
    assert finished(product, "job") == b"of the node\nkept\n/roost\n"
    assert product.client.instances.result("default", "job") == [1]
    found = instance(product, "job").outputs
    assert found is not None and found.files == 1
    image: Any = shared_engine().client.call("GET", f"/images/{IMAGE}/json")
    known = [name.rpartition("@")[2] for name in image["RepoDigests"]]  # of tests that have put it into a registry
    assert instance(product, "job").image in (known or [image["Id"]])


def test_no_variable_of_a_run_reaches_a_program_outside_its_container(product: Product, tmp_path: Path) -> None:
    """The loader of the shim would complain about it, in the log."""
    submit(product, "preload", command=["/bin/busybox", "true"], env={"LD_PRELOAD": "/no/such.so"})
    assert finished(product, "preload") == b""


def test_a_container_has_no_privileges(product: Product) -> None:
    script = "exec 2>&1; grep -E 'CapBnd|NoNewPrivs' /proc/self/status; ls /dev | grep -c '^[shv]d'; "
    script += "ls /var/run/docker.sock"
    submit(product, "bare", command=script)
    log = finished(product, "bare", "failed")
    assert b"CapBnd:\t0000000000000000\nNoNewPrivs:\t1\n0\n" in log


def test_a_container_reaches_nothing_of_the_node_and_of_other_runs(product: Product) -> None:
    submit(product, "victim", command="echo secret-of-the-victim >kept; exec sleep 1000")
    product.client.workloads.wait([("default", "victim")], "running", timeout_s=120)
    wait_until(lambda: any(product.data.rglob("kept")))
    places = [str(path) for path in product.data.rglob("*") if not path.is_dir()] + [shared_engine().socket]
    assert {"keeper.sock", "kept", "agent.log"} <= {Path(path).name for path in places}
    script = """
        for path in $PLACES; do test -e $path && echo $path; done
        for pid in $PIDS; do kill -0 $pid 2>/dev/null && echo $pid; done
        cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | grep -c 'secret-[o]f-the-victim'
        grep -E 'CapEff|Seccomp:' /proc/self/status | tr -d '\\t'
        sh -c 'setsid sleep 4242 &'
        exit 0
    """
    given = {"PLACES": " ".join(places), "PIDS": " ".join(map(str, product.pids))}
    submit(product, "intruder", command=script, env=given)
    assert finished(product, "intruder").split() == [b"0", b"CapEff:0000000000000000", b"Seccomp:2"]
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"4242" in _bytes(path)], "it outlived its run"
    assert instance(product, "victim").state == "running"
    product.client.workloads.cancel("default", "victim")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_volume_that_no_node_offers_to_write_to_is_named(product: Product) -> None:
    submit(product, "writes", command="true", volumes={"data": "/data"})
    assert "volume: has no data to write to" in product.client.workloads.why("default", "writes").message
    product.client.workloads.cancel("default", "writes")


def test_arrays_and_runs_of_schedules_are_containers(product: Product) -> None:
    submit(product, "array", command="echo $ROOST_INDEX", count=3)
    product.client.workloads.wait([("default", "array")], timeout_s=120)
    assert [product.client.logs.read("default", "array", index) for index in range(3)] == [b"0\n", b"1\n", b"2\n"]
    submit(product, "nightly", command="echo tick", schedule="0 0 1 1 *")
    run = product.client.schedules.run("default", "nightly").name
    assert finished(product, run) == b"tick\n"


def test_a_service_is_ready_by_a_check_inside_and_stops(product: Product) -> None:
    script = "trap 'exit 0' TERM; sleep 1; touch /tmp/ready; while :; do sleep 0.1; done"
    check = {"command": ["test", "-e", "/tmp/ready"], "interval": "200ms", "timeout": "30s", "start": "60s"}
    submit(product, "web", kind="service", command=script, health=check, retries=None, count=1)
    product.wait_until(lambda: instance(product, "web").ready)
    before = own_containers(product)
    product.client.workloads.cancel("default", "web")
    product.wait_until(is_state(product, "web", "cancelled"))
    assert own_containers(product) == before - 1


def test_an_action_of_a_pipeline_is_a_container(product: Product) -> None:
    actions = [{"name": "build", "image": IMAGE, "container": ALONE, "steps": ["echo one > f", "cat f"]}]
    run = product.client.workloads.start_pipeline({"name": "ci", "actions": actions})
    (name,) = [work.name for work in product.client.workloads.list() if work.name.startswith(f"ci-{run.run}")]
    assert finished(product, name) == b"one\n"


def test_a_container_outlives_its_agent(product: Product, tmp_path: Path) -> None:
    submit(product, "long", command="echo begun; sleep 3; echo done")
    product.wait_until(lambda: product.client.logs.read("default", "long") == b"begun\n")
    kill_agent(product)
    assert finished(product, "long") == b"begun\ndone\n"
    assert instance(product, "long").attempt == 1


def test_an_image_that_is_not_here_and_may_not_be_fetched_fails_the_attempt(product: Product) -> None:
    submit(product, "absent", image="absent:1", command="true", container={"pull": "never", "network": "none"})
    finished(product, "absent", "failed")
    reason = instance(product, "absent").reason
    assert "image_not_here" in str(reason)


def test_a_secret_of_a_registry_has_to_be_there(product: Product) -> None:
    with pytest.raises(ApiError) as caught:
        submit(product, "login", command="true", container={"registry": {"user": "u", "password": {"secret": "none"}}})
    assert caught.value.path == "container.registry.password"


def test_a_command_runs_in_a_container_and_ends_with_its_client(product: Product) -> None:
    submit(product, "inside", command="echo here > file; exec sleep 600", env={"COLOUR": "red"})
    product.wait_until(is_state(product, "inside", "running"))
    product.wait_until(lambda: own_containers(product) > 0)
    script = "until [ -e file ]; do sleep 0.1; done; cat file; echo $COLOUR; cat; echo wrong >&2; exit 3"
    tunnel = product.client.tunnels.exec("default", "inside", ["sh", "-c", script])
    data = os.urandom(1 << 20)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: (tunnel.write(data), tunnel.end_input()))
        out, err, end = everything(tunnel)
        sending.result()
    assert (out == b"here\nred\n" + data, err, end) == (True, b"wrong\n", TunnelEnd(code=3))
    out, err, end = everything(product.client.tunnels.exec("default", "inside", ["no-such-program"]))
    assert end is not None and end.code in (126, 127) and b"no-such-program" in out + err, "as the engine says it"

    # An engine gives a terminal its size when the command runs already.
    script = "until stty size | grep '33 99'; do sleep 0.1; done; until stty size | grep '44 111'; do sleep 0.1; done"
    command = ["sh", "-c", f"{script}; exec sleep 71717"]
    tunnel = product.client.tunnels.exec("default", "inside", command, terminal=True, rows=33, columns=99)
    assert "33 99" in until(tunnel, b"33 99\r\n")
    tunnel.resize(44, 111)
    assert "44 111" in until(tunnel, b"44 111\r\n")
    product.wait_until(lambda: sleepers("71717"))
    tunnel.close()
    product.wait_until(lambda: not sleepers("71717"), within_s=20)
    assert is_state(product, "inside", "running")()
    product.client.workloads.cancel("default", "inside")


def until(tunnel: Tunnel, text: bytes) -> str:
    found = b""
    while text not in found:
        piece = tunnel.read()
        assert piece is not None, (found, tunnel.end)
        found += piece[1]
    return found.decode()
