"""Test reports: JUnit XML among the outputs of a workload, read and counted when they are asked for."""

from functools import partial
from typing import NamedTuple

import msgspec

from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.files import manifest
from roost.files.junit import JunitReport, WrongReport, read_junit
from roost.model.errors import RoostError
from roost.schema.pipelines.tests import CaseView, ReportProblem, TestsView
from roost.server.operations.context import Call

SETS_MAX = 100  # outputs of so many instances: the elements of an array
SET_BYTES_MAX = 4 << 20  # of a manifest: some 20,000 files
REPORTS_MAX = 500  # files, of all instances
REPORT_BYTES_MAX = 4 << 20  # of one file
REPORTS_BYTES_MAX = 8 << 20  # of all: as large as a request, some two seconds to read in a process of its own


class ReportFile(NamedTuple):
    path: str
    digest: str
    size: int


async def get_tests(call: Call, project: str, name: str) -> TestsView:
    """Count the tests in JUnit XML among the outputs of a workload: `*.xml`, of its last attempts."""
    workload = await call.workload(project, name)
    outputs = [instance.outputs for instance in instances_of(call.engine.state, workload)]
    sets = [found.files.digest for found in outputs if found is not None and found.files is not None]
    files, who = call.context.files.project(project), call.principal.name
    manifests = [await files.read(digest, SET_BYTES_MAX) for digest in sets[:SETS_MAX]]
    found = await call.context.reading.ask(partial(_reports_in, manifests), who)
    contents: list[tuple[str, bytes]] = []
    room, left_out = REPORTS_BYTES_MAX, len(sets[SETS_MAX:])
    for path, digest, size in map(ReportFile._make, found):
        if size > min(room, REPORT_BYTES_MAX) or len(contents) == REPORTS_MAX:
            left_out += 1
            continue
        contents.append((path, await files.read(digest, REPORT_BYTES_MAX)))
        room -= size
    view = await call.context.reading.ask(partial(_counted, contents, left_out), who)
    return msgspec.msgpack.decode(view, type=TestsView)


def _reports_in(manifests: list[bytes], _: State) -> list[ReportFile]:
    found: list[ReportFile] = []
    for data in manifests:
        try:
            entries = manifest.decode(data).files()
        except RoostError:  # larger than what is read of one
            found.append(ReportFile("", "", REPORT_BYTES_MAX + 1))
            continue
        found += [ReportFile(file.path, file.digest, file.size) for file in entries if file.path.endswith(".xml")]
    return found


def _counted(contents: list[tuple[str, bytes]], left_out: int, _: State) -> bytes:
    total, reports = JunitReport(), 0
    problems: list[ReportProblem] = []
    for path, data in contents:
        try:
            report = read_junit(data)
        except WrongReport as error:
            problems.append(ReportProblem(path, str(error)))
            continue
        if report is not None:
            total, reports = total | report, reports + 1
    view = TestsView(
        reports=reports,
        passed=total.passed,
        failed=total.failed,
        skipped=total.skipped,
        flaky=total.flaky,
        time_ms=total.time_ms,
        failures=[CaseView(*case) for case in total.failures],
        slowest=[CaseView(*case) for case in total.slowest],
        problems=problems,
        left_out=left_out,
    )
    return msgspec.msgpack.encode(view)
