"""Posted: results from another source than the agent."""

from roost.core.state.outcome import Step
from roost.model.events import ResultPosted
from roost.model.protocol import Report
from roost.model.reasons.attempts import ResultReported
from tests.core.prefill_scene import brief, chain
from tests.core.scene import Scene, job, outcome, service


def stopped(token: int) -> Report:
    return Report(token, "ended", cause="stopped", signal=15)


def post(scene: Scene, name: str, code: int = 0, *, token: int | None = None, cause: str = "") -> Step:
    instance = scene.instance(name)
    key, answer = instance.workload, instance.token if token is None else token
    return scene.step(ResultPosted(9, key, instance.index, answer, code, cause))


def test_it_ends_as_if_its_agent_had_reported_it_and_the_agent_is_ordered_to_drop_it() -> None:
    scene = Scene("n1")
    scene.submit(job("a"))
    scene.running("a.0")
    answer = outcome(post(scene, "a.0"))
    instance = scene.instance("a.0")
    assert (instance.state, instance.exit_code) == ("succeeded", 0)
    assert instance.reason == ResultReported(0)
    changes = ["instance a.0 succeeded", "workload a"]
    assert answer == {"changes": changes, "orders": ["n1: drop"], "replies": ["a"]}  # and nothing else


def test_another_code_fails_it_and_says_why() -> None:
    scene = Scene("n1")
    scene.submit(job("a"))
    scene.running("a.0")
    post(scene, "a.0", 3, cause="the device says so")
    assert scene.instance("a.0").state == "failed"
    assert scene.instance("a.0").reason == ResultReported(3, "the device says so")


def test_what_may_still_run_takes_its_room_until_the_agent_has_stopped_it() -> None:
    scene = Scene("n1", cpu=1)
    scene.submit(job("a", resources={"cpu": 1}))
    scene.running("a.0")
    scene.submit(job("b", resources={"cpu": 1}, timeout="1h"))
    token = scene.instance("a.0").token
    post(scene, "a.0")
    assert scene.used("n1") == 1_000 and "default/b.0" not in scene.state.instances
    scene.report("n1", stopped(token))
    assert scene.states("a.0", "b.0") == ["succeeded", "placed"] and scene.used("n1") == 1_000


def test_a_token_that_is_not_of_this_attempt_changes_nothing() -> None:
    scene = Scene("n1")
    scene.submit(job("a"))
    scene.running("a.0")
    before = scene.state.revision
    answer = outcome(post(scene, "a.0", token=scene.instance("a.0").token - 1))
    assert "stale_token" in answer["replies"][0], answer
    assert scene.states("a.0") == ["running"] and scene.state.revision == before
    post(scene, "a.0")
    assert "not_running" in outcome(post(scene, "a.0"))["replies"][0]


def test_what_has_not_started_has_no_result() -> None:
    scene = Scene("n1")
    scene.submit(job("a"))
    assert "not_running" in outcome(post(scene, "a.0"))["replies"][0]
    assert scene.states("a.0") == ["placed"]


def test_another_attempt_of_what_must_not_run_twice_waits_until_the_old_one_cannot_live() -> None:
    scene = Scene("n1", "n2")
    scene.submit(job("a", retries={"max": 1, "on": ["failed"]}))
    scene.running("a.0")
    post(scene, "a.0", 1)
    assert scene.states("a.0") == ["queued"]
    policy, settings = scene.state.workloads["default/a"].policy, scene.state.settings
    assert scene.instance("a.0").not_before_ms >= scene.now + policy.grace_ms + settings.lease_ms
    scene.wait("1m")
    assert scene.states("a.0") == ["placed"] and scene.instance("a.0").attempt == 2


def test_what_may_run_twice_starts_again_at_once() -> None:
    scene = Scene("n1")
    scene.submit(job("a", fenced=False, retries={"max": 1, "on": ["failed"]}))
    scene.running("a.0")
    post(scene, "a.0", 1)
    assert scene.instance("a.0").attempt == 2


def test_a_service_is_started_again() -> None:
    scene = Scene("n1")
    scene.submit(service("web"))
    scene.running("web.0")
    post(scene, "web.0", 0)
    assert scene.states("web.0") == ["queued"]
    scene.wait("1m")
    assert scene.instance("web.0").attempt == 2


def test_what_is_being_cancelled_ends_cancelled() -> None:
    scene = Scene("n1")
    scene.submit(job("a"))
    scene.running("a.0")
    scene.cancel("a")
    post(scene, "a.0", 0)
    assert scene.states("a.0") == ["cancelled"]


def test_the_agents_own_report_of_it_comes_too_late_and_changes_nothing() -> None:
    scene = Scene("n1")
    scene.submit(job("a"))
    scene.running("a.0")
    token = scene.instance("a.0").token
    post(scene, "a.0", 0)
    scene.report("n1", stopped(token))
    assert scene.states("a.0") == ["succeeded"] and scene.used("n1") == 0


def test_an_instance_that_stands_behind_it_gets_its_room_and_waits_for_its_end_there() -> None:
    scene = brief("n1")
    scene.submit(job("j", count=9))
    assert chain(scene, "j.0") == ["j.1", "j.2"]
    scene.running("j.0")
    token = scene.instance("j.0").token
    post(scene, "j.0")
    assert scene.states("j.0", "j.1") == ["succeeded", "placed"] and scene.used("n1") == 1_000
    assert "not_running" in outcome(post(scene, "j.2"))["replies"][0]
    scene.report("n1", stopped(token))
    assert scene.used("n1") == 1_000
