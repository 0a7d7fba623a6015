"""Which log bytes are accepted: those of a node's own attempts. No refusal is final before it can be right."""

import pytest

from roost.model.protocol import Hello, LogChunk
from roost.server.agents.ingest_machine import Admission, IngestMachine
from tests.core.scene import Scene, facts_of, job


class Ingest:
    """A job that runs on n1, and a server that decides about its log."""

    def __init__(self, scene: Scene, *connected: str) -> None:
        self.scene = scene
        self.is_leading = True
        self.machine = IngestMachine(lambda: self.scene.state, connected, lambda: self.is_leading)

    def admit(self, node: str, log: str, offset: int = 0) -> Admission:
        return self.machine.admit(node, LogChunk(log, offset, b"bytes"))


@pytest.fixture
def scene() -> Scene:
    scene = Scene("n1", "n2")
    scene.submit(job("train", placement={"require": ["name == 'n1'"]}))
    return scene


def log_of(scene: Scene, number: str = "0.1") -> str:
    return f"default/train/{scene.state.workloads['default/train'].serial}/{number}"  # type: ignore[index]


def test_a_node_ships_the_logs_of_its_own_attempts_and_no_others(scene: Scene) -> None:
    ingest, log = Ingest(scene, "n1", "n2"), log_of(scene)
    assert ingest.admit("n1", log) is Admission.KEEP
    assert ingest.admit("n2", log) is Admission.NOT_ITS_OWN
    assert ingest.admit("n1", log_of(scene, "0.2")) is Admission.NOT_ITS_OWN
    assert ingest.admit("n1", "default/train") is ingest.admit("n1", log, -1) is Admission.NO_LOG


def test_a_refusal_before_the_hello_is_not_final(scene: Scene) -> None:
    assert Ingest(scene, "n2").admit("n1", "default/earlier/7/0.1") is Admission.TOO_EARLY
    assert Ingest(scene, "n1").admit("n1", "default/earlier/7/0.1") is Admission.NOT_ITS_OWN


def test_a_refusal_of_a_server_that_does_not_lead_is_not_final(scene: Scene) -> None:
    """It may hold sessions while its store is away, and lack what the next leader has placed on the node."""
    ingest = Ingest(scene, "n1", "n2")
    ingest.is_leading = False
    assert ingest.admit("n1", "default/placed-by-another/7/0.1") is Admission.TOO_EARLY
    assert ingest.admit("n2", log_of(scene)) is Admission.TOO_EARLY
    assert ingest.admit("n1", log_of(scene)) is Admission.KEEP


def test_a_server_without_memory_believes_the_hello(scene: Scene) -> None:
    forgetful = Ingest(Scene("n1", adopts=True), "n1")
    log = log_of(scene)
    hello = Hello("n1", "machine-n1", facts_of(), 0, (scene.as_ordered("train.0"),))
    assert forgetful.admit("n1", log) is Admission.NOT_ITS_OWN
    forgetful.machine.hello(hello)
    assert forgetful.admit("n1", log) is Admission.KEEP
    unforgetful = Ingest(Scene("n1", adopts=False), "n1")
    unforgetful.machine.hello(hello)
    assert unforgetful.admit("n1", log) is Admission.NOT_ITS_OWN
