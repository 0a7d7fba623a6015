"""Test reports among the outputs of a workload, over the API."""

import msgspec


class CaseView(msgspec.Struct, frozen=True):
    """A test of a report."""

    name: str
    time_ms: int
    message: str = ""  # why it failed


class FlakyCaseView(msgspec.Struct, frozen=True):
    """A test whose outcome changed more than once over the last runs of its action."""

    name: str
    failed: int  # runs in which it failed
    runs: int  # in which it ran


class ReportProblem(msgspec.Struct, frozen=True):
    """A file that looks like a report and is not counted, and why."""

    path: str
    message: str


class TestsView(msgspec.Struct, frozen=True, kw_only=True):
    """All JUnit reports (`*.xml`) among the outputs of the instances of a workload."""

    __test__ = False  # pytest takes it for a test

    reports: int  # files that were counted; 0: there is none
    passed: int
    failed: int
    skipped: int
    flaky: int  # of those that passed: they failed first, as their reports say
    time_ms: int
    failures: list[CaseView]  # the first fifty
    slowest: list[CaseView]  # the first ten
    problems: list[ReportProblem] = []
    earlier_runs: int = 0  # of the same action, with reports that were compared: the last ten
    flaky_cases: list[FlakyCaseView] = []  # over those and this one, the first fifty
    left_out: int = 0  # files that were not read, because there are too many or they are too large
