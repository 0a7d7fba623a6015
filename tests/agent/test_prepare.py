"""From an order to a run: what its environment says of what it was given."""

import pytest

from roost.agent.health.probe import CHECK_MARK
from roost.agent.prepare import environment, from_note, health, image_in_note, note
from roost.keeper.processes import MARK, RUN_MARK
from roost.model.errors import Invalid
from roost.model.protocol import Run
from roost.model.spec.document import encode_document, read_document


def run_of(
    devices: tuple[int, ...] = (), given: tuple[int, ...] = (), more: dict[str, str] | None = None, version: int = 1,
    **fields: object,
) -> tuple[Run, dict[str, str]]:  # fmt: skip
    """An order for a document with these devices, ports and variables, and the environment it makes."""
    document = read_document({"name": "web", "command": "true"} | fields)
    added = tuple((more or {}).items())
    run = Run(
        7, "default/web", 0, 1, encode_document(document), devices=devices, ports=given, version=version, env=added
    )
    return run, environment(run, document, "n1", "/a")


def test_a_run_knows_its_gpus() -> None:
    _, answer = run_of(devices=(2, 5), env={"CUDA_VISIBLE_DEVICES": "all", "MODE": "x"})
    assert (answer["CUDA_VISIBLE_DEVICES"], answer["ROOST_GPUS"], answer["MODE"]) == ("2,5", "2,5", "x")
    assert answer["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_run_knows_its_ports_by_name() -> None:
    _, answer = run_of(given=(8080, 20_001), ports={"http": 8080, "admin-api": 0})
    assert (answer["PORT_HTTP"], answer["PORT_ADMIN_API"]) == ("8080", "20001")
    assert answer["ROOST_PORTS"] == "http=8080,admin-api=20001"


def test_a_node_without_work_gets_no_orders() -> None:
    _, answer = run_of(env={"CUDA_VISIBLE_DEVICES": "mine"})
    assert answer["CUDA_VISIBLE_DEVICES"] == "mine"
    assert not [name for name in answer if name.startswith(("PORT", "ROOST_PORTS", "ROOST_GPUS"))]


def test_what_the_server_adds_goes_before_what_the_document_says_and_what_a_run_is_before_both() -> None:
    run, answer = run_of(
        more={"DB": "10.0.0.2:5432", "MODE": "y", "ROOST_INDEX": "9"}, env={"MODE": "x", "KEEP": "z"}, version=3
    )
    assert (answer["DB"], answer["MODE"], answer["KEEP"]) == ("10.0.0.2:5432", "y", "z")
    assert (answer["ROOST_INDEX"], answer["ROOST_VERSION"]) == ("0", "3")
    assert from_note(note(run)) == run, "another agent gives the same to its health checks"


@pytest.mark.parametrize(
    "check, port",
    [
        ({"tcp": "api"}, 20_001),
        ({"http": "/x", "port": "web"}, 8_080),
        ({"tcp": 5_432}, 5_432),
        ({"http": "/x", "port": 81}, 81),
    ],
)
def test_a_health_check_is_of_the_port_that_the_run_was_given(check: dict[str, object], port: int) -> None:
    run, _ = run_of(given=(8_080, 20_001), ports={"web": 8_080, "api": 0}, kind="service", health=check)
    target = health(run, "n1", "/a", "/k")
    assert target is not None and (target.port, target.env) == (port, {})


def test_a_command_that_checks_has_the_runs_place_and_environment_but_none_of_its_secrets() -> None:
    run, answer = run_of(
        given=(80,), ports={"web": 80}, more={"DB": "db"}, health={"command": ["probe", "x"]}, kind="service",
        env={"A": "b", "KEY": {"secret": "key"}},
    )  # fmt: skip
    target = health(run, "n1", "/a", "/k")
    assert target is not None and target.check.argv == ("probe", "x")
    assert target.directory == "/a/work/7" == target.env["HOME"]
    own = {"PATH": target.env["PATH"], "HOME": "/a/work/7", MARK: "/k", RUN_MARK: "7", CHECK_MARK: "1"}
    assert target.env == answer | own and "KEY" not in target.env


def test_a_document_without_a_check_has_none_whatever_its_words_are() -> None:
    run, _ = run_of(command="health", env={"health": "health"})
    assert health(run, "n1", "/a", "/k") is None


def test_a_check_that_this_agent_cannot_carry_out_is_refused_in_a_message() -> None:
    run, _ = run_of(kind="service", health={"tcp": "nobody"})
    with pytest.raises(Invalid, match=r"health\.tcp: a port by its name or its number"):
        health(run, "n1", "/a", "/k")
    with pytest.raises(Invalid, match="this agent cannot read it"):
        health(Run(7, "default/web", 0, 1, b"\xa6health"), "n1", "/a", "/k")


def test_the_note_for_the_next_agent_holds_what_was_given() -> None:
    run, _ = run_of(devices=(1,), given=(80,), ports={"http": 80})
    assert from_note(note(run)) == run
    assert (from_note(note(run, "sha256:0a")), image_in_note(note(run, "sha256:0a"))) == (run, "sha256:0a")
