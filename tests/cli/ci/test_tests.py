"""The tests of an action as lines of `roost ci show`."""

from roost.cli.ci.tests import report_lines
from roost.schema.pipelines.tests import CaseView, FlakyCaseView, ReportProblem, TestsView


def test_failures_and_the_slowest_tests_are_listed_in_80_columns() -> None:
    failures = [CaseView(f"shop.cart::removes[{number}]", 1, "1 is not 2 " * 10) for number in range(12)]
    report = TestsView(
        reports=2, passed=118, failed=12, skipped=0, flaky=1, time_ms=9_000, failures=failures,
        slowest=[CaseView("slow", 1_250)], problems=[ReportProblem("a.xml", "this is not XML")], left_out=3,
        earlier_runs=9, flaky_cases=[FlakyCaseView("shop.cart::adds", 2, 10), FlakyCaseView("x" * 100, 1, 10)],
    )  # fmt: skip
    lines = list(report_lines("Unit tests", report))
    assert lines[:2] == [
        "Tests of Unit tests: 118 passed, 12 failed, 1 flaky",
        "  failed: shop.cart::removes[0]: 1 is not 2 1 is not 2 1 is not 2 1 is not 2 1 i"[:76],
    ]
    assert lines[11:] == [
        "  and 2 more; --json has the first fifty",
        "  flaky: shop.cart::adds: failed in 2 of 10 runs",
        f"  flaky: {'x' * 43}: failed in 1 of 10 runs",
        "  slow: 1.25s slow",
        "  not counted: a.xml: this is not XML",
        "  3 files were not read: too many, or too large",
    ]
    assert max(map(len, lines)) <= 80
