"""Processes go where they are kept apart, have their user and their limits, as document and project say."""

from roost.core.explain.why import why
from roost.model.events import Unset
from roost.model.states import IsolationLevel
from roost.schema.reason_text import render_text
from tests.core.fleet_builder import FleetBuilder
from tests.core.pool_scene import set_project
from tests.core.scene import Scene, job, outcome

NONE, USER, SANDBOX = IsolationLevel


def test_a_process_goes_where_at_least_so_much_isolation_is() -> None:
    builder = FleetBuilder()
    builder.node("a", isolation=NONE)
    builder.node("b", isolation=USER)
    assert builder.place("x", isolation="user") == "b"
    assert builder.blockers("y", isolation="sandbox") == {"isolation: offers none or user, sandbox is needed": 2}
    builder.node("c", isolation=SANDBOX)
    assert builder.place("z", isolation="sandbox") == "c"


def test_another_user_needs_an_agent_that_can_give_it() -> None:
    builder = FleetBuilder()
    builder.node("a", isolation=SANDBOX)
    message = "run_as: cannot give runs the user builder, its agent is not root or isolates nothing"
    assert builder.blockers("x", run_as="builder") == {message: 1}
    builder.node("b", isolation=USER, users=True)
    assert builder.place("y", run_as="builder") == "b"


def test_required_limits_need_a_node_that_enforces_them() -> None:
    builder = FleetBuilder()
    builder.node("a", enforces=("cpu", "pids"))
    both = {"cpu": 1, "memory": "1MiB"}
    assert builder.place("x", resources=both) == "a"
    assert builder.blockers("y", resources=both, limits="required") == {"limits: does not enforce memory": 1}
    assert builder.place("z", resources={"cpu": 1}, limits="required") == "a"


def test_a_project_has_a_minimum_also_for_work_that_is_pending_already() -> None:
    scene = Scene()
    scene.hello("plain", isolation=NONE)
    set_project(scene, "default", isolation=SANDBOX)
    scene.submit(job("x"))
    assert state_of(scene, "x") == "queued"
    assert "isolation: offers none, its project needs sandbox (1 node)" in text_of(scene, "x")
    scene.submit(job("boxed", image="busybox"), job("free", project="other"))
    assert "isolation" not in text_of(scene, "boxed"), "engines isolate containers"
    assert scene.states("other/free.0") == ["placed"]
    scene.step(Unset(1, "project", "default"))
    assert state_of(scene, "x") == "placed"


def test_a_user_needs_the_permission_of_its_project_to_be_submitted_and_to_be_placed() -> None:
    scene = Scene()
    done = scene.submit(job("x", run_as="root"))
    (reply,) = outcome(done)["replies"]
    assert "project default may not run as root" in reply and "x" not in scene.state.workloads
    set_project(scene, "default", run_as=("root",))
    scene.submit(job("x", run_as="root"))
    assert state_of(scene, "x") == "queued"
    set_project(scene, "default")
    scene.hello("a", isolation=SANDBOX, users=True)
    assert state_of(scene, "x") == "queued"
    assert "run_as: its project may not run as root (1 node)" in text_of(scene, "x")
    set_project(scene, "default", run_as=("root",))
    assert state_of(scene, "x") == "placed"


def state_of(scene: Scene, name: str) -> str:
    (state,) = scene.counts(name)
    return state


def text_of(scene: Scene, name: str) -> str:
    return render_text(why(scene.state, f"default/{name}").text)
