"""A server without memory after a restart: old names and rooms are given away once the old leases have ended."""

from roost.core.explain.why import why
from tests.core.scene import Scene, job, service


def restarted(*nodes: str) -> Scene:
    """One job runs on node a; the server has restarted without memory, and no agent has registered yet."""
    scene = Scene(*nodes, adopts=True, awaits_agents=True)
    scene.wait("10s")
    scene.submit(job("build"))
    scene.running("build.0")
    return scene


def test_a_name_of_an_earlier_server_is_not_started_again_before_the_old_leases_have_ended() -> None:
    scene = restarted("a", "b")
    scene.restart(forgetful=True)
    scene.hello("b")
    scene.submit(job("build"))
    assert scene.counts("build") == {"queued": 1}
    answer = why(scene.state, "default/build")
    assert (answer.code, answer.blockers[0].code) == ("awaiting_agents", "awaiting_agents")
    scene.wait("4s", silent="a")
    assert scene.counts("build") == {"queued": 1}
    scene.wait("1s", silent="a")
    assert (scene.states("build.0"), scene.where("build.0")) == (["placed"], ["b"])


def test_a_submission_that_repeats_the_document_of_a_running_job_attaches_to_it() -> None:
    scene = restarted("a", "b")
    token, answer = scene.instance("build.0").token, scene.as_ordered("build.0")
    scene.restart(forgetful=True)
    scene.hello("b")
    scene.submit(job("build"))
    scene.hello("a", answer)
    scene.wait("10s")
    assert (scene.states("build.0"), scene.where("build.0")) == (["running"], ["a"])
    assert scene.instance("build.0").token == token, "the attempt goes on, and there is no second one"


def test_another_document_of_that_name_waits_and_the_old_attempt_is_stopped() -> None:
    scene = restarted("a", "b")
    token, answer = scene.instance("build.0").token, scene.as_ordered("build.0")
    scene.restart(forgetful=True)
    scene.submit(job("build", command="make other"))
    scene.hello("a", answer)
    assert scene.counts("build") == {"queued": 1}
    assert token in scene.state.liveness["a"].orphans


def test_a_workload_that_does_not_queue_is_not_rejected_meanwhile() -> None:
    scene = restarted("a")
    answer = scene.as_ordered("build.0")
    scene.restart(forgetful=True)
    scene.hello("a", answer)
    scene.submit(job("now", when_full="reject"))
    assert scene.counts("now") == {"queued": 1}
    scene.wait("5s")
    assert scene.states("now.0") == ["placed"]


def test_the_first_server_places_at_once() -> None:
    scene = Scene("a", adopts=True)
    scene.submit(job("build"))
    assert scene.states("build.0") == ["placed"]


def test_a_companion_whose_owner_no_agent_reports_ends_when_the_old_leases_have_ended() -> None:
    scene = Scene("a", "b", adopts=True, awaits_agents=True)
    scene.wait("10s")
    scene.submit(job("test", approve={"role": "operator"}), service("db", until="test"))
    scene.running("db.0")
    answer = scene.as_ordered("db.0")
    scene.restart(forgetful=True)
    scene.hello("a", answer)
    assert scene.states("db.0") == ["running"], "another agent may run its owner"
    scene.wait("6s")
    assert scene.states("db.0") == ["stopping"]


def test_a_companion_is_adopted_with_its_owner() -> None:
    scene = Scene("a", adopts=True, awaits_agents=True)
    scene.wait("10s")
    scene.submit(job("test"), service("db", until="test"))
    scene.running("db.0")
    scene.running("test.0")
    answers = [scene.as_ordered("db.0"), scene.as_ordered("test.0")]
    scene.restart(forgetful=True)
    scene.hello("a", *answers)
    scene.wait("6s")
    assert scene.states("db.0") == ["running"]
    scene.ended("test.0")
    assert scene.states("db.0") == ["stopping"]


def test_an_adopted_run_is_superseded() -> None:
    group = {"concurrency": {"group": "web", "cancel": True}}
    scene = Scene("a", adopts=True, awaits_agents=True)
    scene.wait("10s")
    scene.submit(job("old", **group))
    scene.running("old.0")
    answer = scene.as_ordered("old.0")
    scene.restart(forgetful=True)
    scene.hello("a", answer)
    scene.submit(job("new", **group))
    assert scene.states("old.0") == ["stopping"]
