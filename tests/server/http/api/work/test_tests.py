"""Test reports over the API: counted over the outputs of a workload, with what was not counted."""

import pytest

from roost.files.manifest import FileEntry, Manifest, encode
from roost.model.protocol import Run
from roost.model.records.files import FileSet, Outputs
from roost.ports.blobs import digest_of
from tests.server.inprocess_server import InprocessServer, Played, inprocess_server

GOOD = b'<testsuite><testcase name="a" time="1"/><testcase name="b"><failure message="no"/></testcase></testsuite>'


async def stored(made: InprocessServer, contents: dict[str, bytes]) -> FileSet:
    blobs = made.files.project("default").blobs
    await blobs.put([(digest_of(data), data) for data in contents.values()])
    entries = [FileEntry(path, 0o644, len(data), digest_of(data)) for path, data in sorted(contents.items())]
    data = encode(Manifest(tuple(entries)))
    await blobs.put([(digest_of(data), data)])
    return FileSet(digest_of(data), len(entries), sum(map(len, contents.values())))


async def ended(made: InprocessServer, contents: dict[str, bytes]) -> None:
    """The workload `job` has ended, and left these files."""
    agent = await made.agent("n1")
    await made.submit("job")
    (run,) = agent.orders(Run)
    await agent.starts(run)
    await agent.ends(run, outputs=Outputs(await stored(made, contents)))


async def test_reports_among_the_outputs_are_counted() -> None:
    files = {"a.xml": GOOD, "b.xml": GOOD.replace(b"1", b"2"), "coverage.xml": b"<coverage/>", "c.txt": GOOD,
             "broken.xml": b"<testsuite>"}  # fmt: skip
    async with inprocess_server() as made:
        await ended(made, files)
        found = await made.get("/v1/workloads/default/job/tests")
        counts = {name: found[name] for name in ("reports", "passed", "failed", "skipped", "time_ms", "left_out")}
        assert counts == {"reports": 2, "passed": 2, "failed": 2, "skipped": 0, "time_ms": 3_000, "left_out": 0}
        assert found["failures"] == [{"name": "b", "time_ms": 0, "message": "no"}] * 2
        assert [case["time_ms"] for case in found["slowest"]][:2] == [2_000, 1_000]
        assert [problem["path"] for problem in found["problems"]] == ["broken.xml"]


async def ran(made: InprocessServer, agent: Played, run: int, outcome: str, action: str = "unit") -> str:
    """A run of an action, whose test has passed or failed. Its name."""
    name = f"web-{run}-{action}"
    await made.submit(name, labels={"pipeline": "web", "run": str(run), "action": action})
    order = agent.orders(Run)[-1]
    await agent.starts(order)
    case = b'<testcase name="shaky">%b</testcase>' % (b"<failure/>" if outcome == "failed" else b"")
    report = b'<testsuite><testcase name="good"/>' + case + b"</testsuite>"
    await agent.ends(order, outputs=Outputs(await stored(made, {"a.xml": report})))
    return name


async def test_flaky_tests_are_found_over_the_runs_of_an_action() -> None:
    async with inprocess_server() as made:
        agent = await made.agent("n1")
        for run, outcome in enumerate(("passed", "failed", "passed")):
            await ran(made, agent, run, "passed", action="lint")
            last = await ran(made, agent, run, outcome)
        found = await made.get(f"/v1/workloads/default/{last}/tests")
        assert (found["passed"], found["failed"], found["earlier_runs"]) == (2, 0, 2)
        assert found["flaky_cases"] == [{"name": "shaky", "failed": 1, "runs": 3}]
        before = await made.get("/v1/workloads/default/web-1-unit/tests")
        assert (before["failed"], before["earlier_runs"], before["flaky_cases"]) == (1, 1, []), (
            "later runs do not count"
        )
        other = await made.get("/v1/workloads/default/web-2-lint/tests")
        assert (other["earlier_runs"], other["flaky_cases"]) == (2, [])


async def test_earlier_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with inprocess_server() as made:
        agent = await made.agent("n1")
        for run in range(4):
            last = await ran(made, agent, run, "failed" if run % 2 else "passed")
        monkeypatch.setattr("roost.server.operations.work.tests.EARLIER_RUNS_MAX", 2)
        found = await made.get(f"/v1/workloads/default/{last}/tests")
        assert (found["earlier_runs"], found["flaky_cases"]) == (2, [{"name": "shaky", "failed": 2, "runs": 3}])
        monkeypatch.setattr("roost.server.operations.work.tests.EARLIER_BYTES_MAX", 0)
        found = await made.get(f"/v1/workloads/default/{last}/tests")
        assert (found["reports"], found["earlier_runs"], found["flaky_cases"]) == (1, 0, [])


async def test_a_workload_without_outputs_has_no_tests() -> None:
    async with inprocess_server() as made:
        await made.submit("job")
        assert (await made.get("/v1/workloads/default/job/tests"))["reports"] == 0
        assert (await made.get("/v1/workloads/default/none/tests", expect=404))["code"] == "not_found"


async def test_files_that_are_too_large_are_not_read() -> None:
    async with inprocess_server() as made:
        await ended(made, {"a.xml": GOOD, "large.xml": b" " * (5 << 20)})
        found = await made.get("/v1/workloads/default/job/tests")
        assert (found["reports"], found["left_out"]) == (1, 1)
