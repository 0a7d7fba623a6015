"""Health over the API: probes, status, metrics."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from roost import __version__
from roost.files.manifest import FileEntry, Manifest, encode
from roost.ports.blobs import digest_of
from roost.server.observability import metrics
from tests.server.inprocess_server import InprocessServer, Stop, inprocess_server


async def numbers(made: InprocessServer) -> dict[str, float]:
    """What /metrics says, by name and labels."""
    answer = await made.client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found["/".join([sample.name, *sample.labels.values()])] = sample.value
    return found


async def test_probes_need_no_token() -> None:
    async with inprocess_server() as made:
        del made.client.headers["authorization"]
        assert (await made.client.get("/livez")).json() == {"alive": True}
        assert (await made.client.get("/readyz")).json() == {"ready": True}


async def test_status_counts_what_there_is() -> None:
    async with inprocess_server(strategy="best_fit", lease_ms=5_000) as made:
        await made.agent(cpu=2_000)
        await made.submit(count=5)
        status = await made.get("/v1/status")
        assert (status["version"], status["ready"], status["revision"]) == (
            __version__,
            True,
            made.engine.state.revision,
        )
        assert (status["strategy"], status["lease_ms"]) == ("best_fit", 5_000) and "round_robin" in status["strategies"]
        assert status["nodes"] == {"ready": 1} and status["workloads"] == {"running": 1}
        assert status["instances"] == {"placed": 2, "queued": 3}
        await made.post("/v1/workloads/default/job/cancel")
        assert (await made.get("/v1/status"))["instances"] == {"stopping": 2, "cancelled": 3}


async def test_metrics_tell_of_projects_and_of_the_queue() -> None:
    async with inprocess_server(backfill_after_ms=0, preempt_margin=20) as made:
        agent = await made.agent(cpu=2_000)
        await made.submit("low", project="red", priority=10, resources={"cpu": 2})
        await made.submit("more", project="red", priority=10, count=4)
        found = await numbers(made)
        assert found["roost_project_held/red/cpu_milli"] == 2_000 and found["roost_project_held/red/instances"] == 1
        assert found["roost_project_waiting/red"] == 4
        assert found["roost_preemptions_total"] == found["roost_preemption_cycles_total"] == 0
        assert (found["roost_holds"], found["roost_reservations"]) == (1, 0)
        await made.submit("high", project="blue", priority=90)
        await agent.stops(agent.orders(Stop)[0])
        await made.post("/v1/reservations", {"name": "r", "project": "blue", "count": 1, "start": "1h"}, expect=201)
        found = await numbers(made)
        assert (found["roost_preemptions_total"], found["roost_preemption_cycles_total"]) == (1, 0)
        assert found["roost_project_held/blue/instances"] == 1 and found["roost_project_waiting/blue"] == 0
        assert found["roost_reservations"] == 1


async def test_metrics_count_files_by_project() -> None:
    async with inprocess_server() as made:
        data = encode(Manifest((FileEntry("one", 0o644, 3, digest_of(b"one")),)))
        await made.files.root.project("red").put([(digest_of(content), content) for content in (data, b"one")])
        found = await numbers(made)
        assert (found["roost_files_held"], found["roost_blobs_unshared"]) == (0, 0)
        await made.submit("job", project="red", inputs=[{"from": digest_of(data)}])
        await made.post("/v1/projects/red/files/missing", {"digests": [digest_of(b"one"), digest_of(b"x")]})
        found = await numbers(made)
        assert (found["roost_project_files/red"], found["roost_project_file_bytes/red"]) == (1, 3)
        assert (found["roost_files_held"], found["roost_files_held_bytes"]) == (2, 0)
        await made.client.put(f"/v1/projects/red/blobs/{digest_of(b'twelve bytes')}?size=12", content=b"twelve bytes")
        assert (await numbers(made))["roost_files_held_bytes"] == 12


async def test_a_page_of_metrics_tells_of_so_many_projects_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PROJECTS_MAX", 2)
    async with inprocess_server() as made:
        for project, count in (("a", 1), ("b", 3), ("c", 2)):
            await made.submit(project=project, count=count)
        answer = [name for name in await numbers(made) if name.startswith("roost_project_waiting/")]
        assert answer == ["roost_project_waiting/b", "roost_project_waiting/c"]


async def test_metrics_count_what_happens() -> None:
    async with inprocess_server() as made:
        agent = await made.agent(cpu=2_000)
        await made.submit("other", placement={"strategy": "round_robin"})
        await made.submit(count=3)
        await agent.ends(agent.orders()[0], 0)
        before = await numbers(made)
        assert before["roost_placements_total/least_loaded"] + before["roost_placements_total/round_robin"] == 3
        assert before["roost_nodes/ready"] == 1 and before["roost_instances/succeeded"] == 1
        assert before["roost_instances_waiting"] == before["roost_instances/queued"] == 1
        assert before["roost_steps_total"] >= 4 and before["roost_events_total"] >= 4
        assert before["roost_commit_seconds_count"] == before["roost_commit_seconds_bucket/+Inf"] > 0
        assert before["roost_ready"] == 1 and before["roost_watchers"] == 0
        await made.submit("more")
        after = await numbers(made)
        assert after["roost_commit_seconds_count"] == before["roost_commit_seconds_count"] + 1
        assert after["roost_instances_waiting"] == 2
