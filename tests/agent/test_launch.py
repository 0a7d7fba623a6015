"""From an order to a run: what its environment says of what it was given."""

from roost.agent.launch import environment, from_note, note
from roost.model.document import encode_document, read_document
from roost.model.frames import Run


def run_of(devices: tuple[int, ...] = (), given: tuple[int, ...] = (), **fields: object) -> tuple[Run, dict[str, str]]:
    """An order for a document with these devices and ports, and the environment it makes."""
    document = read_document({"name": "web", "command": "true"} | fields)
    run = Run(7, "default/web", 0, 1, encode_document(document), devices=devices, ports=given)
    return run, environment(run, document, "n1")


def test_a_run_knows_its_gpus() -> None:
    _, told = run_of(devices=(2, 5), env={"CUDA_VISIBLE_DEVICES": "all", "MODE": "x"})
    assert (told["CUDA_VISIBLE_DEVICES"], told["ROOST_GPUS"], told["MODE"]) == ("2,5", "2,5", "x")
    assert told["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_run_knows_its_ports_by_name() -> None:
    _, told = run_of(given=(8080, 20_001), ports={"http": 8080, "admin-api": 0})
    assert (told["PORT_HTTP"], told["PORT_ADMIN_API"]) == ("8080", "20001")
    assert told["ROOST_PORTS"] == "http=8080,admin-api=20001"


def test_who_was_given_nothing_is_told_nothing() -> None:
    _, told = run_of(env={"CUDA_VISIBLE_DEVICES": "mine"})
    assert told["CUDA_VISIBLE_DEVICES"] == "mine"
    assert not [name for name in told if name.startswith(("PORT", "ROOST_PORTS", "ROOST_GPUS"))]


def test_the_note_for_the_next_agent_holds_what_was_given() -> None:
    run, _ = run_of(devices=(1,), given=(80,), ports={"http": 80})
    assert from_note(note(run)) == run
