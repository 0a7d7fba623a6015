"""Test reports in JUnit XML, as most test runners write them: counted, with failures, slow and flaky tests.

A report comes from a run, so nothing in it is trusted: no document types and no entities, and bounds on all it can
make this remember.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from xml.parsers import expat

CASES_MAX = 200_000  # of one report: the largest suites have some ten thousand
DEPTH_MAX = 32  # a report has 4 levels
TEXT_MAX = 300  # characters of a name or a message that are kept
FAILURES_MAX = 50  # listed; the rest is counted
SLOWEST_MAX = 10
FLAKY_MAX = 50
SUITES = ("testsuites", "testsuite")
BAD = ("failure", "error")
FLAKY = ("flakyFailure", "flakyError")  # failed first, and then succeeded in the same report
TIME_MS_MAX = 10**12


class CaseResult(NamedTuple):
    name: str
    time_ms: int
    message: str = ""


class JunitReport(NamedTuple):
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    flaky: int = 0  # of those that passed
    time_ms: int = 0
    failures: tuple[CaseResult, ...] = ()
    slowest: tuple[CaseResult, ...] = ()
    outcomes: Mapping[str, bool] = {}  # of one report: by name, whether all passed; none of those that were skipped

    def __or__(self, other: "JunitReport") -> "JunitReport":
        return JunitReport(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.flaky + other.flaky,
            self.time_ms + other.time_ms,
            (self.failures + other.failures)[:FAILURES_MAX],
            tuple(heapq.nlargest(SLOWEST_MAX, self.slowest + other.slowest, key=lambda case: case.time_ms)),
        )


class FlakyCase(NamedTuple):
    """A test whose outcome has changed more than once."""

    name: str
    failed: int  # runs in which it failed
    runs: int  # in which it ran


def merged(reports: Iterable[Mapping[str, bool]]) -> dict[str, bool]:
    """The outcomes of one run, which may have several reports."""
    found: dict[str, bool] = {}
    for outcomes in reports:
        for name, passed in outcomes.items():
            found[name] = passed and found.get(name, True)
    return found


def flaky_cases(runs: Sequence[Mapping[str, bool]]) -> list[FlakyCase]:
    """Of runs in their order, those that failed most often first. A change that breaks a test, or mends it, is one."""
    found: list[FlakyCase] = []
    for name in sorted({name for outcomes in runs for name, passed in outcomes.items() if not passed}):
        seen = [outcomes[name] for outcomes in runs if name in outcomes]
        if sum(one != next_one for one, next_one in zip(seen, seen[1:], strict=False)) > 1:
            found.append(FlakyCase(name, seen.count(False), len(seen)))
    return sorted(found, key=lambda case: -case.failed)[:FLAKY_MAX]


class WrongReport(Exception):
    """It is no XML that is read here, and why."""


def read_junit(data: bytes) -> JunitReport | None:
    """The summary of a report; None: it is XML of another kind. Raises WrongReport."""
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = _refuse
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise WrongReport(f"this is not XML: {error}") from None
    except _OtherKind:
        return None
    return reader.report()


def _refuse(*_: object) -> None:
    raise WrongReport("a report has no document type and no entities")


class _OtherKind(Exception):
    pass


class _Reader:
    def __init__(self) -> None:
        self._depth = 0
        self._case: CaseResult | None = None
        self._outcome = "passed"
        self._counts = dict.fromkeys(("passed", "failed", "skipped", "flaky"), 0)
        self._time_ms = 0
        self._failures: list[CaseResult] = []
        self._slowest: list[tuple[int, int, CaseResult]] = []
        self._outcomes: dict[str, bool] = {}

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and name not in SUITES:
            raise _OtherKind
        if self._depth > DEPTH_MAX or sum(self._counts.values()) > CASES_MAX:
            raise WrongReport(f"a report has at most {DEPTH_MAX} levels and {CASES_MAX:,} tests")
        if name == "testcase":
            title = "::".join(filter(None, (attributes.get("classname", ""), attributes.get("name", ""))))
            self._case, self._outcome = CaseResult(_short(title), _milliseconds(attributes.get("time", ""))), "passed"
        elif self._case is not None and name in BAD:
            self._outcome = "failed"
            self._case = self._case._replace(
                message=_short(attributes.get("message", "") or attributes.get("type", ""))
            )
        elif self._case is not None and name == "skipped":
            self._outcome = "skipped"
        elif self._case is not None and name in FLAKY and self._outcome == "passed":
            self._counts["flaky"] += 1

    def end(self, name: str) -> None:
        self._depth -= 1
        case = self._case
        if name != "testcase" or case is None:
            return
        self._case = None
        self._counts[self._outcome] += 1
        self._time_ms += case.time_ms
        if self._outcome != "skipped":
            self._outcomes[case.name] = self._outcome == "passed" and self._outcomes.get(case.name, True)
        if self._outcome == "failed" and len(self._failures) < FAILURES_MAX:
            self._failures.append(case)
        entry = (case.time_ms, -sum(self._counts.values()), case._replace(message=""))
        (heapq.heappush if len(self._slowest) < SLOWEST_MAX else heapq.heappushpop)(self._slowest, entry)

    def report(self) -> JunitReport:
        slowest = tuple(case for _, _, case in sorted(self._slowest, reverse=True))
        return JunitReport(
            **self._counts, time_ms=self._time_ms, failures=tuple(self._failures), slowest=slowest,
            outcomes=self._outcomes,
        )  # fmt: skip


def _short(text: str) -> str:
    return " ".join(text.split())[:TEXT_MAX]


def _milliseconds(text: str) -> int:
    """Seconds as most write them; a time that is no number counts as none."""
    try:
        return max(0, min(TIME_MS_MAX, round(float(text.replace(",", "") or 0) * 1_000)))
    except (ValueError, OverflowError):
        return 0
