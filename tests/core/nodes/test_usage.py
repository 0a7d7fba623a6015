"""Usage as nodes report it: kept with its attempt, and unknown where it was not measured."""

from roost.model.protocol import Report
from roost.model.records.usage import RunUsage
from roost.model.records.webhook import is_end
from roost.model.states import AttemptState, EndCause
from tests.core.scene import Scene, job

USED = RunUsage(1_500, 64 << 20, memory_is_bound=False, io_read=4_096, io_written=0)
KEPT = RunUsage(1_500, 64 << 20, memory_is_bound=False, io_read=4_096, io_written=0, wall_ms=2_000)


def test_usage_is_kept_with_its_attempt_and_a_retry_begins_without() -> None:
    scene = Scene("a")
    scene.submit(job("web", retries={"max": 1, "on": ["failed"]}))
    scene.running("web.0")
    scene.ended("web.0", code=1, usage=USED, started_ago_ms=2_010, ended_ago_ms=10)
    scene.running("web.0")
    assert scene.instance("web.0").usage is None
    scene.ended("web.0", started_ago_ms=500)
    assert scene.instance("web.0").usage == RunUsage(wall_ms=500)
    ends = [line for line in scene.instance("web.0").story if is_end(line.before, line.state)]
    assert [line.usage for line in ends] == [KEPT, RunUsage(wall_ms=500)]


def test_an_attempt_that_never_began_used_nothing() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    token = scene.instance("web.0").token
    scene.report("a", Report(token, AttemptState.ENDED, 900, cause=EndCause.ERROR, error="no such program"))
    assert scene.states("web.0") == ["failed"] and scene.instance("web.0").usage is None
