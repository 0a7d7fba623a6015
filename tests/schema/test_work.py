"""Views of workloads and instances: what follows from their fields."""

import pytest

from roost.schema.work import InstanceView


@pytest.mark.parametrize(
    ("state", "since_ms", "finished_ms", "until_ms"),
    [
        ("running", 100, None, None),
        ("stopping", 400, None, None),
        ("queued", 400, None, 400),
        ("failed", 400, 400, 400),
    ],
)
def test_an_instance_that_waits_for_its_restart_has_stopped_running(
    state: str, since_ms: int, finished_ms: int | None, until_ms: int | None
) -> None:
    view = InstanceView(project="p", name="web", index=0, state=state, since_ms=since_ms, finished_ms=finished_ms)
    assert view.ran_until_ms == until_ms
