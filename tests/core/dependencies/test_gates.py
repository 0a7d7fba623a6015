"""Conditions and approval: whether and when a workload starts whose dependencies are over."""

from typing import Any

import pytest

from roost.core.explain.why import why
from roost.model.errors import RoostError
from roost.model.events import Approve, AttributedRequest
from roost.model.limits import RESULT_VARIABLE_BYTES_MAX, RESULT_VARIABLES_BYTES_MAX
from roost.model.reasons.attempts import Approved, ConditionFalse, ConditionUnclear, NeedsApproval
from roost.model.reasons.reason import DependencyEnded
from roost.model.records.access import ADMIN, OPERATOR, SUBMITTER
from roost.model.records.opaque import By
from roost.model.records.result import Result
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, outcome

FINISHED = [{"workload": "build", "when": "finished"}]


def workload(scene: Scene, name: str) -> Any:
    return scene.state.workloads[f"default/{name}"]


def built(*documents: dict[str, Any], code: int = 0, result: bytes = b"") -> Scene:
    """`build` has ended, and what was submitted with it is decided."""
    scene = Scene("a")
    scene.submit(job("build"), *documents)
    scene.running("build.0")
    scene.ended("build.0", code=code, result=Result(result) if result else None)
    return scene


def approve(scene: Scene, name: str, rank: int = OPERATOR, who: str = "ann") -> Any:
    """The reply to an approval."""
    event = AttributedRequest(By(who, "here"), Approve(1, f"default/{name}", rank))
    (reply,) = scene.step(event).replies
    return reply.value


# --- conditions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "code", "result", "ending"),
    [
        ("needs.build.state == 'succeeded'", 0, b"", "placed"),
        ("needs.build.state == 'failed'", 1, b"", "placed"),
        ("needs.build.state == 'failed'", 0, b"", "skipped"),
        ("needs.build.result.deploy", 0, b'{"deploy":true}', "placed"),
        ("needs.build.result.deploy", 0, b'{"deploy":false}', "skipped"),
        ("needs.build.result == null", 0, b"", "placed"),
        ("needs.build.result.deploy", 0, b"{}", "failed"),
        ("needs.other.state == 'failed'", 0, b"", "failed"),
        ("env.BRANCH == 'main'", 0, b"", "placed"),
        ("env.BRANCH.startsWith('release')", 0, b"", "skipped"),
        ("has(env.TAG)", 0, b"", "skipped"),
    ],
)
def test_a_condition_decides_when_the_dependencies_are_over(
    condition: str, code: int, result: bytes, ending: str
) -> None:
    deploy = job("deploy", after=FINISHED, **{"if": condition, "env": {"BRANCH": "main", "KEY": {"secret": "k"}}})
    scene = built(deploy, code=code, result=result)
    assert scene.counts("deploy") == {ending: 1}
    reason = workload(scene, "deploy").reason
    assert isinstance(reason, {"placed": type(None), "skipped": ConditionFalse, "failed": ConditionUnclear}[ending])
    assert bool(workload(scene, "deploy").finished_ms) == (ending != "placed")


def test_nothing_is_decided_before_all_dependencies_are_over() -> None:
    scene = Scene("a")
    after = [*FINISHED, {"workload": "lint", "when": "finished"}]
    scene.submit(job("build"), job("lint"), job("deploy", after=after, **{"if": "needs.lint.state == 'failed'"}))
    scene.running("build.0", "lint.0")
    scene.ended("build.0")
    assert scene.counts("deploy") == {"queued": 1}
    assert outcome(scene.ended("lint.0")) == {
        "changes": ["instance lint.0 succeeded", "workload lint", "workload deploy skipped"],
        "orders": ["a: drop"],
    }


def test_without_dependencies_it_is_decided_at_once() -> None:
    scene = Scene("a")
    scene.submit(job("a", env={"X": "1"}, **{"if": "env.X == '2'"}), job("b", env={"X": "1"}, **{"if": "env.X == '1'"}))
    assert (scene.counts("a"), scene.counts("b")) == ({"skipped": 1}, {"placed": 1})


def test_what_follows_a_skipped_workload_is_skipped_unless_its_end_is_enough() -> None:
    scene = built(
        job("deploy", after=["build"], **{"if": "false"}),
        job("notify", after=["deploy"]),
        job("mail", after=["notify"]),
        job("clean", after=[{"workload": "deploy", "when": "finished"}]),
    )
    assert [scene.counts(name) for name in ("deploy", "notify", "mail")] == [{"skipped": 1}] * 3
    assert isinstance(workload(scene, "notify").reason, DependencyEnded)
    assert scene.counts("clean") == {"placed": 1}


def test_a_dependency_that_failed_cancels_before_the_condition_is_asked() -> None:
    scene = built(job("deploy", after=["build"], **{"if": "true"}), code=1)
    assert scene.counts("deploy") == {"cancelled": 1}


def test_a_retry_asks_the_condition_again() -> None:
    scene = built(job("deploy", after=FINISHED, **{"if": "needs.build.state == 'succeeded'"}), code=1)
    assert scene.counts("deploy") == {"skipped": 1}
    scene.retry("deploy")
    assert scene.counts("deploy") == {"skipped": 1}
    scene.retry("build")
    scene.retry("deploy")
    assert scene.counts("deploy") == {"queued": 1}
    scene.running("build.0")
    scene.ended("build.0")
    assert scene.counts("deploy") == {"placed": 1}


def test_a_retry_without_dependencies_asks_the_condition_again() -> None:
    scene = Scene("a")
    scene.submit(job("a", **{"if": "false"}))
    scene.retry("a")
    assert scene.counts("a") == {"skipped": 1}


def test_large_results_are_null_for_a_condition() -> None:
    scene = built(
        job("deploy", after=["build"], **{"if": "needs.build.result == null"}), result=b'"' + b"x" * 20_000 + b'"'
    )
    assert scene.counts("deploy") == {"placed": 1}


def test_results_that_are_large_together_are_null_from_the_first_that_does_not_fit() -> None:
    names = [f"part-{number}" for number in range(6)]
    fitting = [f"needs['{name}'].result != null" for name in names[:4]]
    small = "needs['part-5'].result == 'small'"
    rule = " && ".join([*fitting, "needs['part-4'].result == null", small])
    scene = Scene("a", "b")
    scene.submit(*map(job, names), job("deploy", after=names, **{"if": rule}))
    scene.running(*[f"{name}.0" for name in names])
    quote = b'"%s"'
    for name in names[:5]:  # four of them have the whole limit, but for two hundred bytes
        scene.ended(f"{name}.0", result=Result(quote % (b"x" * (RESULT_VARIABLES_BYTES_MAX // 4 - 52))))
    scene.ended("part-5.0", result=Result(quote % b"small"))
    assert scene.counts("deploy") == {"placed": 1}


@pytest.mark.parametrize(("more", "ending"), [(0, "skipped"), (1, "placed")])
def test_a_result_of_exactly_the_limit_is_not_null(more: int, ending: str) -> None:
    data = b'"%s"' % (b"x" * (RESULT_VARIABLE_BYTES_MAX - 2 + more))
    scene = built(job("deploy", after=["build"], **{"if": "needs.build.result == null"}), result=data)
    assert scene.counts("deploy") == {ending: 1}


def test_a_dependency_that_goes_on_is_running_for_a_condition() -> None:
    after = [{"workload": "server", "when": "started"}]
    rules = {"test": "needs.server.state == 'running'", "not": "needs.server.state != 'running'"}
    scene = Scene("a")
    scene.submit(job("server"), *[job(name, after=after, **{"if": rule}) for name, rule in rules.items()])
    scene.running("server.0")
    assert (scene.counts("test"), scene.counts("not")) == ({"placed": 1}, {"skipped": 1})


# --- approval ---------------------------------------------------------------------------------------------------------


def test_an_approved_job_starts_and_its_story_says_who_approved_it() -> None:
    scene = built(job("deploy", after=["build"], approve={"role": "operator"}))
    assert scene.counts("deploy") == {"queued": 1}
    assert workload(scene, "deploy").reason == NeedsApproval("operator")
    found = why(scene.state, "default/deploy", None)
    assert (found.code, [blocker.code for blocker in found.blockers]) == ("needs_approval", ["needs_approval"])
    assert render_text(found.text) == "default/deploy.0 waits for approval by a user with the role operator"
    scene.restart()
    scene.hello("a")
    assert scene.counts("deploy") == {"queued": 1}
    assert approve(scene, "deploy") == "default/deploy"
    assert scene.counts("deploy") == {"placed": 1}
    assert scene.instance("deploy.0").story[0].reason == Approved("ann")
    assert workload(scene, "deploy").reason is None
    assert approve(scene, "deploy", who="bob") == "default/deploy", "twice is fine"
    assert workload(scene, "deploy").approval == Approved("ann")


@pytest.mark.parametrize(("role", "rank", "allowed"), [("admin", OPERATOR, False), ("submitter", SUBMITTER, True)])
def test_the_role_has_to_be_held(role: str, rank: int, allowed: bool) -> None:
    scene = built(job("deploy", after=["build"], approve={"role": role}))
    reply = approve(scene, "deploy", rank)
    assert getattr(reply, "status", 200) == (200 if allowed else 403)
    assert scene.counts("deploy") == {"placed" if allowed else "queued": 1}


def test_approval_comes_after_the_dependencies() -> None:
    scene = Scene("a")
    scene.submit(job("build"), job("deploy", after=["build"], approve={}), job("free"))
    codes = [getattr(approve(scene, name, ADMIN), "code", "") for name in ("deploy", "free", "none")]
    assert codes == ["not_yet", "no_approval", "not_found"]
    scene.cancel("deploy")
    assert approve(scene, "deploy", ADMIN).code == "is_over"


def test_a_skipped_job_needs_no_approval_and_a_retried_one_does() -> None:
    scene = built(job("deploy", after=["build"], approve={}, **{"if": "false"}), job("other", approve={}))
    assert scene.counts("deploy") == {"skipped": 1}
    scene.cancel("other")
    scene.retry("other")
    assert scene.counts("other") == {"queued": 1}
    approve(scene, "other")
    assert scene.counts("other") == {"placed": 1}


def test_an_approved_job_that_never_started_is_retried_without_a_second_approval() -> None:
    scene = Scene()  # without nodes
    scene.submit(job("deploy", approve={}))
    approve(scene, "deploy")
    scene.cancel("deploy")
    scene.retry("deploy")
    scene.step()
    assert (workload(scene, "deploy").approval, workload(scene, "deploy").reason) == (Approved("ann"), None)
    scene.hello("a")
    assert scene.counts("deploy") == {"placed": 1}


def test_others_can_wait_for_a_job_that_waits_for_approval() -> None:
    scene = built(job("deploy", after=["build"], approve={}))
    scene.submit(job("notify", after=["deploy"]))
    approve(scene, "deploy")
    scene.running("deploy.0")
    scene.ended("deploy.0")
    assert scene.counts("notify") == {"placed": 1}


def test_what_is_approved_cannot_be_changed() -> None:
    scene = built(
        job("deploy", after=["build"], approve={}), job("maybe", after=["free"], **{"if": "true"}), job("free")
    )
    for name, fields in (
        ("deploy", {"command": "other", "approve": {}, "after": ["build"]}),
        ("maybe", {"after": ["free"], "if": "false"}),
        ("maybe", {"if": "true"}),
    ):
        (reply,) = scene.submit(job(name, **fields), same_ok=True).replies
        assert isinstance(reply.value, RoostError)
        assert reply.value.code == "cannot_change"
