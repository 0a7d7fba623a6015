"""Test reports over the API: counted over the outputs of a workload, with what was not counted."""

from roost.files.manifest import FileEntry, Manifest, encode
from roost.model.protocol import Run
from roost.model.records.files import FileSet, Outputs
from roost.ports.blobs import digest_of
from tests.server.inprocess_server import InprocessServer, inprocess_server

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
