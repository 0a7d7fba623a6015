"""The typed client: errors in our words, servers that are away, calls that might have been made."""

import threading
import time
from pathlib import Path

import pytest
from roost_lab.components.ports import free_port

from roost.client.config import read_config
from roost.client.controller import Controller
from roost.client.errors import ApiError, NotConfigured, Unreachable
from tests.cli.serving import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with serving(tmp_path_factory.mktemp("server"), "server") as running:
        yield running


def test_it_finds_its_server_and_status_shows_where(served: Served) -> None:
    with Controller.find(read_config(served.config)) as controller:
        (made,) = controller.schedule({"name": "found", "command": "true"})
        assert (made.name, made.state) == ("found", "queued")
        assert controller.get("default", "found").workload.name == "found"
        assert "found" in [workload.name for workload in controller.workloads(project="default")]
        assert controller.update({"name": "found", "command": "true", "priority": 60}).name == "found"
        assert controller.unschedule("default", "found").state == "cancelled"
    shown = served.roost("status").stdout.decode()
    with served.client() as client:
        (address,) = client.status().controllers
    assert f"gRPC at {address}" in shown


def test_a_no_is_an_error_of_ours_with_its_field(served: Served) -> None:
    with Controller.find(read_config(served.config)) as controller:
        with pytest.raises(ApiError) as caught:
            controller.schedule({"name": "x", "command": "true", "colour": 1})
        assert (caught.value.status, caught.value.code, caught.value.path) == (422, "invalid", "documents[0].colour")
        with pytest.raises(ApiError) as caught:
            next(controller.run({"name": "x y", "command": "true"}))
        assert (caught.value.code, caught.value.path) == ("invalid", "document.name")
        with pytest.raises(ApiError) as caught:
            controller.get("default", "nobody")
        assert (caught.value.status, caught.value.code) == (404, "not_found")
        assert caught.value.params == {"workload": "default/nobody"}


def test_a_wrong_token_is_refused_at_once(served: Served) -> None:
    with served.client() as client:
        (address,) = client.status().controllers
    with Controller(address, "wrong-token") as controller, pytest.raises(ApiError) as caught:
        controller.get("default", "x")
    assert (caught.value.status, caught.value.code) == (401, "refused")


def test_a_server_that_is_not_there_is_left_for_one_that_is(served: Served) -> None:
    with served.client() as client:
        (address,) = client.status().controllers
    token = read_config(served.config).token
    with Controller(f"127.0.0.1:{free_port()},{address}", token) as controller:
        assert controller.schedule({"name": "second", "command": "true"})[0].name == "second"
        assert any(frame.whole for frame in controller.watch(once=True))


def test_a_missing_server_is_reported_after_a_while() -> None:
    with Controller(f"127.0.0.1:{free_port()}", "token", patience_s=0.3) as controller:
        with pytest.raises((Unreachable, ApiError)) as caught:
            controller.get("default", "x")
        assert getattr(caught.value, "status", 503) == 503
    with pytest.raises(NotConfigured):
        Controller(" , ", "token")


def test_closing_ends_streams_of_other_threads(served: Served) -> None:
    controller = Controller.find(read_config(served.config))
    begun, ended = threading.Event(), threading.Event()

    def watch() -> None:
        for _ in controller.watch():
            begun.set()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    assert begun.wait(10)
    controller.close()
    assert ended.wait(10)
    with pytest.raises(Unreachable, match="closed"):
        controller.get("default", "x")


def test_a_server_without_a_door_for_controllers_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, "server", "--no-controllers") as running:
        with pytest.raises(NotConfigured, match="does not listen"):
            Controller.find(read_config(running.config))


def test_a_controller_asks_about_nodes_decisions_and_the_past(served: Served) -> None:
    with Controller.find(read_config(served.config)) as controller:
        assert list(controller.nodes()) == []
        for call in (
            controller.node,
            controller.drain,
            controller.preview_drain,
            controller.cordon,
            controller.uncordon,
        ):
            with pytest.raises(ApiError) as caught:
                call("nowhere")
            assert (caught.value.code, caught.value.params) == ("not_found", {"node": "nowhere"})
        assert controller.plan({"name": "asked", "command": "true"}).created == ["default/asked"]
        made = controller.create_join_token(uses=None)
        assert made.about.id in [token.id for token in controller.join_tokens()]
        controller.revoke_join_token(made.about.id)
        assert made.about.id not in [token.id for token in controller.join_tokens()]
        controller.schedule({"name": "asked", "command": "true"})
        assert controller.why("default", "asked", brief=True).state == "queued"
        controller.unschedule("default", "asked")
        deadline = time.monotonic() + 30  # history is written a moment later
        while not (found := [finished.name for finished in controller.history(name="asked")]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found == ["asked"]
        assert "cancelled" in [event.what for event in controller.events(workload="asked", kind="workload")]
