"""Test reports: JUnit XML among the outputs of a workload, read and counted when they are asked for."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.files import manifest
from roost.files.junit import JunitReport, WrongReport, flaky_cases, merged, read_junit
from roost.model.errors import RoostError
from roost.model.records.workload import Workload
from roost.model.spec.pipelines.labels import ACTION, PIPELINE
from roost.schema.pipelines.tests import CaseView, FlakyCaseView, ReportProblem, TestsView
from roost.server.files.store import ProjectFiles
from roost.server.operations.context import Call
from roost.server.waiting import ScanLimit

SETS_MAX = 100  # outputs of so many instances: the elements of an array
SET_BYTES_MAX = 4 << 20  # of a manifest: some 20,000 files
REPORTS_MAX = 500  # files, of all instances
REPORT_BYTES_MAX = 4 << 20  # of one file
REPORTS_BYTES_MAX = 8 << 20  # of all: as large as a request, some two seconds to read in a process of its own
EARLIER_RUNS_MAX = 10  # of the same action: enough to tell a flaky test from one that was broken and mended
EARLIER_SETS_MAX = 10  # outputs of so many elements, of each of them
EARLIER_BYTES_MAX = 8 << 20  # of the reports of all of them
SAME = (f"{PIPELINE}=", f"{ACTION}=")  # labels that the runs of an action have in common


class ReportFile(NamedTuple):
    path: str
    digest: str
    size: int


class Reports(NamedTuple):
    """The reports of a workload, and how many files were left out."""

    contents: list[tuple[str, bytes]]
    left_out: int


async def get_tests(call: Call, project: str, name: str) -> TestsView:
    """Count the tests in JUnit XML among the outputs of a workload: `*.xml`, of its last attempts.

    Of an action of a pipeline: also the tests that are flaky over its last runs, as far as their outputs are kept.
    """
    workload = await call.workload(project, name)
    runs = [workload, *_earlier_runs(call.engine.state, workload)]
    sets = [_sets_of(call.engine.state, run) for run in runs]
    files, who = call.context.files.project(project), call.principal.name
    read = [sets[0][:SETS_MAX], *(digests[:EARLIER_SETS_MAX] for digests in sets[1:])]
    manifests = [[await files.read(digest, SET_BYTES_MAX) for digest in digests] for digests in read]
    found = await call.context.reading.ask(partial(_reports_in, manifests), who)
    own, *rest = [list(map(ReportFile._make, reports)) for reports in found]
    reports = await _read(files, own, REPORTS_BYTES_MAX)
    room, earlier = EARLIER_BYTES_MAX, list[Reports]()
    for run in rest:
        earlier.append(await _read(files, run, room))
        room -= sum(len(data) for _, data in earlier[-1].contents)
    reports = reports._replace(left_out=reports.left_out + len(sets[0][SETS_MAX:]))
    view = await call.context.reading.ask(partial(_counted, reports, [run.contents for run in earlier]), who)
    return msgspec.msgpack.decode(view, type=TestsView)


def _earlier_runs(state: State, workload: Workload) -> list[Workload]:
    """The same action in earlier runs of its pipeline, newest first, as far as a short scan finds them."""
    own = {label for label in workload.policy.labels if label.startswith(SAME)}
    if len(own) != len(SAME):
        return []
    found: list[Workload] = []
    scan = ScanLimit()
    for other in reversed(state.workloads.values()):
        if other.serial < workload.serial and other.project == workload.project and own <= {*other.policy.labels}:
            found.append(other)
        if scan.is_over() or len(found) == EARLIER_RUNS_MAX:
            break
    return found


def _sets_of(state: State, workload: Workload) -> list[str]:
    outputs = [instance.outputs for instance in instances_of(state, workload)]
    return [found.files.digest for found in outputs if found is not None and found.files is not None]


async def _read(files: ProjectFiles, found: list[ReportFile], room: int) -> Reports:
    contents: list[tuple[str, bytes]] = []
    left_out = 0
    for path, digest, size in found:
        if size > min(room, REPORT_BYTES_MAX) or len(contents) == REPORTS_MAX:
            left_out += 1
            continue
        contents.append((path, await files.read(digest, REPORT_BYTES_MAX)))
        room -= size
    return Reports(contents, left_out)


def _reports_in(runs: list[list[bytes]], _: State) -> list[list[ReportFile]]:
    return [_reports_of(manifests) for manifests in runs]


def _reports_of(manifests: list[bytes]) -> list[ReportFile]:
    found: list[ReportFile] = []
    for data in manifests:
        try:
            entries = manifest.decode(data).files()
        except RoostError:  # larger than what is read of one
            found.append(ReportFile("", "", REPORT_BYTES_MAX + 1))
            continue
        found += [ReportFile(file.path, file.digest, file.size) for file in entries if file.path.endswith(".xml")]
    return found


def _counted(own: Reports, earlier: list[list[tuple[str, bytes]]], _: State) -> bytes:
    total, outcomes = JunitReport(), list[Mapping[str, bool]]()
    problems: list[ReportProblem] = []
    for report in _parsed(own.contents, problems):
        total |= report
        outcomes.append(report.outcomes)
    before = [[report.outcomes for report in _parsed(contents, [])] for contents in reversed(earlier)]
    runs = [merged(reports) for reports in (*before, outcomes) if reports]
    view = TestsView(
        reports=len(outcomes),
        passed=total.passed,
        failed=total.failed,
        skipped=total.skipped,
        flaky=total.flaky,
        time_ms=total.time_ms,
        failures=[CaseView(*case) for case in total.failures],
        slowest=[CaseView(*case) for case in total.slowest],
        problems=problems,
        earlier_runs=sum(map(bool, before)),
        flaky_cases=[FlakyCaseView(*case) for case in flaky_cases(runs)],
        left_out=own.left_out,
    )
    return msgspec.msgpack.encode(view)


def _parsed(contents: list[tuple[str, bytes]], problems: list[ReportProblem]) -> Iterator[JunitReport]:
    for path, data in contents:
        try:
            report = read_junit(data)
        except WrongReport as error:
            problems.append(ReportProblem(path, str(error)))
            continue
        if report is not None:
            yield report
