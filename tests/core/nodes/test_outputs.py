"""Outputs of attempts: stored with their end, replaced by the next attempt, named as long as a record has them."""

import msgspec
import pytest

from roost.core.explain.why import why
from roost.core.invariants import check
from roost.model.events import ResultPosted
from roost.model.protocol import Report
from roost.model.reasons.attempts import ExitCode, OutputsMissing, OutputsNotKept, outputs_missing, outputs_not_kept
from roost.model.reasons.reason import AttemptRetried
from roost.model.records.files import FileSet, OutputGap, OutputProblem, Outputs
from roost.model.records.instance import Instance
from roost.schema.reason_text import render, render_text
from tests.core.scene import Scene, job, outcome

ONE, TWO = FileSet("sha256:" + "1" * 64, 3, 300), FileSet("sha256:" + "2" * 64, 1, 7)
MISSING = OutputGap(OutputProblem.MISSING, "dist/*.whl", required=True)
OPTIONAL = OutputGap(OutputProblem.MISSING, "*.xml")


def started(*documents: dict[str, object]) -> Scene:
    scene = Scene("n1", cpu=8)
    scene.submit(*documents)
    scene.running(*scene.state.instances)
    return scene


@pytest.mark.parametrize(
    ("report", "state"),
    [
        ({}, "succeeded"),
        ({"code": 3}, "failed"),
        ({"cause": "timed_out", "code": None, "signal": 15}, "timed_out"),
    ],
)
def test_outputs_are_part_of_the_same_commit_as_the_end_whatever_that_is(
    report: dict[str, object], state: str
) -> None:  # fmt: skip
    scene = started(job("a", retries=0))
    outputs = Outputs(ONE, (OPTIONAL,))
    done = scene.ended("a.0", outputs=outputs, **report)  # type: ignore[arg-type]
    written = {change.key: change.value for change in done.changes if change.kind == "instance"}
    stored = msgspec.msgpack.decode(written["default/a.0"] or b"", type=Instance)
    assert (stored.state, stored.outputs) == (state, outputs)
    assert scene.state.file_sets == {"default": {ONE: 1}}
    scene.restart()
    assert scene.instance("a.0").outputs == outputs and scene.state.file_sets == {"default": {ONE: 1}}


def test_a_run_that_is_cancelled_may_leave_outputs() -> None:
    scene = started(job("a"))
    scene.cancel("a")
    scene.ended("a.0", cause="stopped", code=None, signal=15, outputs=Outputs(ONE))
    assert (scene.instance("a.0").state, scene.instance("a.0").outputs) == ("cancelled", Outputs(ONE))


def test_each_attempt_has_its_own_and_those_of_the_last_one_stay() -> None:
    scene = started(job("a", retries={"max": 2, "on": ["failed"]}))
    scene.ended("a.0", code=1, outputs=Outputs(ONE))
    assert (scene.instance("a.0").attempt, scene.instance("a.0").outputs) == (2, None), "the next attempt has begun"
    assert scene.state.file_sets == {}
    scene.running("a.0")
    scene.ended("a.0", code=1)
    scene.running("a.0")
    scene.ended("a.0", code=1, outputs=Outputs(TWO))
    assert (scene.instance("a.0").attempt, scene.instance("a.0").outputs) == (3, Outputs(TWO))
    scene.retry("a")
    assert scene.instance("a.0").outputs is None and scene.state.file_sets == {}


def test_a_report_of_an_earlier_attempt_changes_no_outputs() -> None:
    scene = started(job("a", retries={"max": 1, "on": ["failed"]}))
    old = scene.instance("a.0").token
    scene.ended("a.0", code=1, outputs=Outputs(ONE))
    scene.running("a.0")
    scene.ended("a.0", outputs=Outputs(TWO))
    scene.report("n1", Report(old, "ended", cause="exited", code=0, outputs=Outputs(ONE)))
    assert scene.instance("a.0").outputs == Outputs(TWO)


def test_a_required_gap_makes_a_run_that_exits_with_0_fail() -> None:
    scene = started(job("a", retries=0))
    scene.ended("a.0", outputs=Outputs(ONE, (OPTIONAL, MISSING)))
    instance = scene.instance("a.0")
    assert (instance.state, instance.exit_code, instance.outputs) == ("failed", 0, Outputs(ONE, (OPTIONAL, MISSING)))
    assert instance.reason == OutputsMissing((MISSING,))
    assert render(instance.reason) == "required outputs are missing: dist/*.whl (no file matches)"


def test_other_gaps_change_nothing_of_the_end() -> None:
    scene = started(job("a"))
    scene.ended("a.0", outputs=Outputs(None, (OPTIONAL,)))
    assert scene.instance("a.0").state == "succeeded"


def test_why_names_what_was_not_kept() -> None:
    scene = started(job("a"))
    scene.ended(
        "a.0", outputs=Outputs(ONE, (OutputGap(OutputProblem.TOO_LARGE, "core"), OutputGap(OutputProblem.NOT_STORED)))
    )
    text = render_text(why(scene.state, "default/a").text)
    assert "; outputs not kept: core (too large), all outputs (it could not be stored in time)" in text


def test_an_exit_code_says_more_than_a_gap() -> None:
    scene = started(job("a", retries=0))
    scene.ended("a.0", code=2, outputs=Outputs(None, (MISSING,)))
    assert scene.instance("a.0").reason == ExitCode(2)


def test_a_required_gap_is_a_failure_for_the_retry_policy() -> None:
    scene = started(job("a", retries={"max": 1, "on": ["failed"]}))
    scene.ended("a.0", outputs=Outputs(None, (MISSING,)))
    assert scene.instance("a.0").attempt == 2
    assert AttemptRetried(OutputsMissing((MISSING,)), 2, 2) in [line.reason for line in scene.instance("a.0").story]


def test_a_reason_names_the_first_gaps_and_counts_the_others() -> None:
    gaps = tuple(OutputGap(OutputProblem.TOO_LARGE, f"file-{number}", required=True) for number in range(5))
    scene = started(job("a", retries=0))
    scene.ended("a.0", outputs=Outputs(None, gaps))
    reason = scene.instance("a.0").reason
    assert reason == OutputsMissing(gaps[:3], 2)
    assert render(reason).endswith("file-2 (too large) and 2 more")


def test_gaps_that_a_report_had_no_room_for_are_counted_with_the_last_it_has() -> None:
    """The worst come first: if the last one is not required, none of those left out is."""
    required = Outputs(None, (MISSING,), 7)
    assert (outputs_missing(required), outputs_not_kept(required)) == (OutputsMissing((MISSING,), 7), None)
    both = Outputs(None, (MISSING, OPTIONAL), 7)
    assert outputs_missing(both) == OutputsMissing((MISSING,))
    assert outputs_not_kept(both) == OutputsNotKept((OPTIONAL,), 7)


def test_a_client_cannot_end_an_attempt_whose_outputs_are_to_be_collected() -> None:
    scene = started(job("a", outputs=["*.xml"]), job("b"))
    for name, answer in (("a.0", "has_outputs"), ("b.0", "b")):
        instance = scene.instance(name)
        done = scene.step(ResultPosted(9, instance.workload, 0, instance.token, 0, ""))
        assert answer in outcome(done)["replies"][0]
    assert scene.states("a.0", "b.0") == ["running", "succeeded"]


def test_sets_are_named_until_their_last_record_is_forgotten() -> None:
    scene = started(job("a", retention="1m"), job("b", retention="1h"))
    scene.ended("a.0", "b.0", outputs=Outputs(ONE))
    assert scene.state.file_sets == {"default": {ONE: 2}}
    scene.wait("2m")
    assert scene.state.file_sets == {"default": {ONE: 1}}
    scene.wait("2h")
    assert scene.state.file_sets == {} and check(scene.state) == []


def test_an_adopted_end_has_its_outputs() -> None:
    scene = Scene("n1", adopts=True)
    scene.wait("10s")
    scene.submit(job("a"))
    scene.running("a.0")
    run, report = scene.as_ordered("a.0")
    scene.restart(forgetful=True)
    ended = msgspec.structs.replace(report, state="ended", cause="exited", code=0, outputs=Outputs(ONE))
    scene.hello("n1", (run, ended))
    assert scene.instance("a.0").outputs == Outputs(ONE) and scene.state.file_sets == {"default": {ONE: 1}}


def test_an_orphan_whose_outputs_are_collected_takes_no_room() -> None:
    """Its end may have been reported before, by an earlier agent, and its room given to another."""
    scene = Scene("n1", cpu=1)
    scene.submit(job("a", fenced=False, outputs=["*"]))
    scene.running("a.0")
    run, report = scene.as_ordered("a.0")
    scene.cancel("a")
    scene.ended("a.0", cause="stopped", code=None, signal=15)
    scene.submit(job("b"))
    scene.running("b.0")
    collecting = msgspec.structs.replace(report, ready=False, ended_ago_ms=1)
    scene.hello("n1", (run, collecting), "b.0", cpu=1)
    assert scene.used("n1") == 1_000
    scene.hello("n1", (run, report), cpu=4)
    assert scene.used("n1") == 2_000, "one that runs takes its room"
