"""Views: one word for a workload, and counts that include what never ran."""

import pytest

from roost.model.records.workload import Ask, Policy, Workload
from roost.server.views.work import counts_of, workload_state


def workload(**fields: object) -> Workload:
    return Workload("default", "w", Policy("job", Ask()), b"", 1, 1, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "begun", "counts", "state", "every"),
    [
        ({}, 0, {}, "queued", {"queued": 1}),
        ({"count": 3}, 1, {"placed": 1}, "running", {"placed": 1, "queued": 2}),
        ({"count": 3}, 2, {"running": 1, "failed": 1}, "running", {"running": 1, "failed": 1, "queued": 1}),
        ({"count": 2}, 2, {"stopping": 1, "queued": 1}, "stopping", {"stopping": 1, "queued": 1}),
        ({"count": 2}, 2, {"running": 0, "queued": 1, "succeeded": 1}, "queued", {"queued": 1, "succeeded": 1}),
        ({"count": 2, "unstarted_end_state": "cancelled"}, 1, {"stopping": 1}, "stopping",
         {"stopping": 1, "cancelled": 1}),
        ({"count": 2, "unstarted_end_state": "expired"}, 1, {"running": 1}, "running", {"running": 1, "expired": 1}),
        ({"count": 2, "finished_ms": 9}, 2, {"succeeded": 2}, "succeeded", {"succeeded": 2}),
        ({"count": 3, "finished_ms": 9}, 3, {"succeeded": 1, "failed": 1, "timed_out": 1}, "failed", None),
        ({"count": 2, "finished_ms": 9}, 2, {"timed_out": 1, "cancelled": 1}, "timed_out", None),
        ({"count": 9, "finished_ms": 9, "unstarted_end_state": "cancelled"}, 1, {"succeeded": 1}, "cancelled",
         {"succeeded": 1, "cancelled": 8}),
        ({"finished_ms": 9, "unstarted_end_state": "rejected"}, 0, {}, "rejected", {"rejected": 1}),
        ({"count": 3, "finished_ms": 9, "adopted": True}, 3, {"succeeded": 1}, "succeeded", {"succeeded": 1}),
        ({"count": 0, "finished_ms": 9, "unstarted_end_state": "cancelled"}, 0, {}, "cancelled", {}),
    ],
)  # fmt: skip
def test_a_workload_is_one_word(
    fields: dict[str, object], begun: int, counts: dict[str, int], state: str, every: dict[str, int] | None
) -> None:
    record = workload(**fields)
    counted = counts_of(record, begun, counts)
    assert workload_state(record, counted) == state
    if every is not None:
        assert counted == every
