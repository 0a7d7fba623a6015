"""Tests of a run: JUnit reports among the outputs of its actions."""

from collections.abc import Iterator, Sequence

from roost.client import Client
from roost.model.spec.pipelines.labels import ACTION
from roost.model.spec.units import show_duration
from roost.schema.pipelines.tests import TestsView
from roost.schema.work import InstanceView, WorkloadView

FAILURES_SHOWN = 10
SLOWEST_SHOWN = 3
FLAKY_SHOWN = 10
FLAKY_ROOM = 24  # for the counts behind the name
LINE_MAX = 76  # characters of a test and its message: a line of 80 columns


def tests_of(
    client: Client, workloads: Sequence[WorkloadView], elements: Sequence[Sequence[InstanceView]]
) -> dict[str, TestsView]:
    """The tests of actions that left files, by action; without those that have no report."""
    found: dict[str, TestsView] = {}
    for workload, instances in zip(workloads, elements, strict=True):
        if any(instance.outputs is not None and instance.outputs.files for instance in instances):
            report = client.workloads.tests(workload.project, workload.name)
            if report.reports or report.problems or report.left_out:
                found[workload.labels[ACTION]] = report
    return found


def report_lines(action: str, report: TestsView) -> Iterator[str]:
    counts = {"passed": report.passed, "failed": report.failed, "skipped": report.skipped, "flaky": report.flaky}
    shown = ", ".join(f"{count} {word}" for word, count in counts.items() if count or word == "passed")
    yield f"Tests of {action}: {shown}"
    for case in report.failures[:FAILURES_SHOWN]:
        yield f"  failed: {case.name}: {case.message}"[:LINE_MAX]
    if report.failed > FAILURES_SHOWN:
        yield f"  and {report.failed - FAILURES_SHOWN} more; --json has the first fifty"
    for flaky in report.flaky_cases[:FLAKY_SHOWN]:
        yield f"  flaky: {flaky.name}"[: LINE_MAX - FLAKY_ROOM] + f": failed in {flaky.failed} of {flaky.runs} runs"
    for case in report.slowest[:SLOWEST_SHOWN]:
        yield f"  slow: {show_duration(case.time_ms)} {case.name}"[:LINE_MAX]
    for problem in report.problems[:FAILURES_SHOWN]:
        yield f"  not counted: {problem.path}: {problem.message}"[:LINE_MAX]
    if report.left_out:
        yield f"  {report.left_out} files were not read: too many, or too large"
