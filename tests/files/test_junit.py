"""Reports in JUnit XML: what is counted, and what is refused."""

import pytest

from roost.files.junit import (
    CASES_MAX,
    FAILURES_MAX,
    FlakyCase,
    JunitReport,
    WrongReport,
    flaky_cases,
    merged,
    read_junit,
)

REPORT = b"""<?xml version="1.0"?>
<testsuites>
  <testsuite name="unit" tests="5">
    <testcase classname="shop.cart" name="adds" time="0.5"/>
    <testcase classname="shop.cart" name="removes" time="1.25">
      <failure message="1 is&#10;  not 2" type="AssertionError">long text</failure></testcase>
    <testcase name="crashes" time="0.1"><error type="OSError"/></testcase>
    <testcase name="later"><skipped/></testcase>
    <testcase name="shaky" time="x"><flakyFailure message="once"/></testcase>
  </testsuite>
</testsuites>"""


def test_a_report_is_counted() -> None:
    report = read_junit(REPORT)
    assert report is not None
    assert (report.passed, report.failed, report.skipped, report.flaky, report.time_ms) == (2, 2, 1, 1, 1_850)
    assert [(case.name, case.message) for case in report.failures] == [
        ("shop.cart::removes", "1 is not 2"),
        ("crashes", "OSError"),
    ]
    assert [case.name for case in report.slowest][:3] == ["shop.cart::removes", "shop.cart::adds", "crashes"]
    both = report | report
    assert (both.passed, both.failed, len(both.failures), both.slowest[1].time_ms) == (4, 4, 4, 1_250)


def test_outcomes_are_known_by_name() -> None:
    report = read_junit(REPORT)
    assert report is not None
    assert report.outcomes == {"shop.cart::adds": True, "shop.cart::removes": False, "crashes": False, "shaky": True}
    again = {"crashes": True, "new": True}
    assert merged((report.outcomes, again)) == {**report.outcomes, "new": True}, "one failure of a name counts"


def test_a_test_that_fails_now_and_then_is_flaky() -> None:
    runs = [
        {"good": True, "shaky": True, "worse": False, "broken": True, "mended": False, "rare": True},
        {"good": True, "shaky": False, "worse": True, "broken": True, "mended": False},
        {"good": True, "shaky": True, "worse": False, "broken": False, "mended": True, "rare": False},
        {"good": True, "shaky": True, "worse": False, "broken": False, "mended": True},
    ]
    assert flaky_cases(runs) == [FlakyCase("worse", 3, 4), FlakyCase("shaky", 1, 4)]
    assert flaky_cases(runs[:2]) == [], "a change is no flake"
    assert flaky_cases([]) == []


def test_other_xml_is_no_report() -> None:
    assert read_junit(b"<coverage><testcase/></coverage>") is None
    assert read_junit(b"<testsuite/>") == JunitReport()


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><testsuite><testcase name="&b;"/></testsuite>'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<testsuite>",
        b"{}",
        BOMB,
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite/>',
        b"<testsuite>" + b"<testsuite>" * 40 + b"</testsuite>" * 41,
        b"<testsuite>&undefined;</testsuite>",
    ],
)
def test_what_is_not_a_report_is_refused(data: bytes) -> None:
    with pytest.raises(WrongReport):
        read_junit(data)


def test_what_is_kept_is_bounded() -> None:
    case = b'<testcase name="%b"><failure message="%b"/></testcase>' % (b"n" * 1_000, b"m" * 1_000)
    report = read_junit(b"<testsuite>" + case * 200 + b"</testsuite>")
    assert report is not None
    assert (report.failed, len(report.failures), len(report.failures[0].message)) == (200, FAILURES_MAX, 300)
    with pytest.raises(WrongReport):
        read_junit(b"<testsuite>" + b"<testcase/>" * (CASES_MAX + 2) + b"</testsuite>")
