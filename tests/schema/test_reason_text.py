"""Every reason has a sentence, and what a reader may not see is in neither the sentence nor the data."""

import json
from typing import Any, get_args

import msgspec
import pytest

from roost.model.reasons.attempts import (
    CancelRequested,
    DependencyUnknown,
    ExitCode,
    GangRestart,
    InputsFailed,
    NodeReserved,
    Preempted,
    Prefilled,
    RunReplaced,
    TickSkipped,
    TicksSkipped,
)
from roost.model.reasons.nodes import HeartbeatsMissing
from roost.model.reasons.reason import (
    BlockerText,
    DependencyEnded,
    MovedToQueue,
    NodeLost,
    PlacementRejected,
    Reason,
    RolledBack,
    RolloutFailures,
    Text,
    shortened,
)
from roost.model.reasons.subjects import InstanceRef, ProjectRef, WorkloadRef
from roost.model.records.files import InputFailure, InputProblem
from roost.schema.reason_text import HIDDEN, HIDDEN_PROJECT, SENTENCES, reason_view, render, render_text

FOREIGN = InstanceRef("hidden", "covert", 0)
PREEMPTED = Preempted(FOREIGN, 90, 10, ProjectRef("hidden"))


def sees(project: str) -> bool:
    return project == "open"


def test_every_reason_has_a_sentence_and_a_code_of_its_own() -> None:
    kinds = get_args(Reason)
    assert set(SENTENCES) == set(kinds)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (CancelRequested("alice"), "cancelled by alice"),
        (CancelRequested(), "cancelled"),
        (ExitCode(3, 1), "step 2: exit code 3"),
        (NodeLost("n3", HeartbeatsMissing(15_000)), "node n3 lost: no heartbeat for 15s"),
        (
            InputsFailed(InputFailure(InputProblem.URL_FAILED, "tool", 404, "example.org answers 404", is_final=True)),
            "input tool: its URL failed (example.org answers 404)",
        ),
        (InputsFailed(InputFailure(InputProblem.DISK_FULL)), "inputs: the disk of the node is full"),
        (Preempted(FOREIGN, 60, 40), "preempted by hidden/covert.0 (priority 60 over 40)"),
    ],
)
def test_sentences(reason: Reason, sentence: str) -> None:
    assert render(reason) == sentence
    stored = msgspec.msgpack.encode(reason)
    assert msgspec.msgpack.decode(stored, type=Reason) == reason


@pytest.mark.parametrize(
    "reason",
    [
        PREEMPTED,
        MovedToQueue(PREEMPTED),
        Prefilled("n1", FOREIGN),
        GangRestart(FOREIGN),
        NodeReserved("n1", ProjectRef("hidden")),
        RunReplaced(WorkloadRef("hidden", "covert")),
        DependencyUnknown(WorkloadRef("hidden", "covert"), 2),
        DependencyEnded(WorkloadRef("hidden", "covert"), 2, "failed", cause=PREEMPTED),
        RolledBack(1, cause=RolloutFailures(2, 3, PREEMPTED)),
        PlacementRejected("insufficient_resources", (BlockerText("kept", ("reserved for ", ProjectRef("hidden"))),)),
        TicksSkipped("UTC", skipped=(TickSkipped(60_000, "run_active", WorkloadRef("hidden", "covert")),)),
    ],
)
def test_foreign_subjects_are_hidden_in_the_sentence_and_in_the_data(reason: Reason) -> None:
    shown = render(reason, sees)
    assert HIDDEN in shown or HIDDEN_PROJECT in shown
    data = json.dumps(msgspec.to_builtins(reason_view(reason, sees)))
    assert "hidden" not in shown + data and "covert" not in shown + data
    assert "hidden" in render(reason) and "hidden" in json.dumps(msgspec.to_builtins(reason_view(reason)))


def test_own_subjects_are_named() -> None:
    own = Preempted(InstanceRef("open", "web", 1), 90, 10)
    assert render(own, sees) == "preempted by open/web.1 (priority 90 over 10)"
    view: Any = reason_view(own, sees)
    assert view.params["by"] == {"project": "open", "name": "web", "index": 1}
    text: Text = ("kept for ", FOREIGN, ", kept for ", InstanceRef("open", "own", 0), ": ", ExitCode(1))
    assert render_text(text, sees) == f"kept for {HIDDEN}, kept for open/own.0: exit code 1"


def test_a_long_chain_of_dependencies_is_cut() -> None:
    reason: Reason = ExitCode(1)
    for number in range(50):
        reason = DependencyEnded(WorkloadRef("p", f"w{number}"), state="cancelled", cause=shortened(reason))
    assert render(reason).count("dependency") < 10
