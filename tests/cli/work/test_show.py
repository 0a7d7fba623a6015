"""roost show and ps: failures first, and what is left out is reported."""

import itertools
import json

import pytest

from roost.cli.common.usage import run_usage_text
from roost.cli.work.show import format_outputs
from roost.client import Client
from roost.schema.work import GapView, InstanceView, OutputsSummary, RunUsageView
from tests.cli.conftest import Type
from tests.cli.serving import Served

COUNT = 150
NUMBERS = itertools.count()


@pytest.fixture
def array(server: Served) -> str:
    """150 pending elements, of which one was cancelled."""
    name = f"array-{next(NUMBERS)}"
    with server.client() as client:
        client.workloads.submit({"name": name, "command": "true", "count": COUNT})
        client.workloads.cancel("default", name, 140)
    return name


def rows(output: str, name: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.startswith(f"{name}.")]


def test_show_lists_failures_first_and_says_what_it_leaves_out(typed: Type, array: str) -> None:
    result = typed("show", array)
    found = rows(result.stdout, array)
    assert len(found) == 100
    assert found[0][:2] == [f"{array}.140", "cancelled"] and found[1][:2] == [f"{array}.0", "queued"]
    assert "roost: 50 more; " in result.stderr
    assert len(rows(typed("show", array, "--limit", "150").stdout, array)) == COUNT
    assert [row[0] for row in rows(typed("show", array, "--state", "cancelled").stdout, array)] == [f"{array}.140"]


def test_show_has_all_instances_as_json_or_says_how_many_more(typed: Type, array: str) -> None:
    every = json.loads(typed("show", array, "--json").stdout)
    assert (len(every["instances"]), every["more"]) == (COUNT, 0)
    assert every["instances"][0]["index"] == 140
    some = json.loads(typed("show", array, "--json", "--limit", "2", "--state", "queued").stdout)
    assert ([one["index"] for one in some["instances"]], some["more"]) == ([0, 1], COUNT - 3)


def test_ps_says_that_there_are_more(typed: Type, server: Served) -> None:
    with server.client() as client:
        for number in range(3):
            client.workloads.submit({"project": "many", "name": f"job-{number}", "command": "true"})
    result = typed("ps", "-p", "many", "--limit", "2")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["NAME", "many/job-2", "many/job-1"]
    assert result.stderr == "roost: the newest 2; --limit lists more, --project and --state only some\n"
    assert len(json.loads(typed("ps", "-p", "many", "--json").stdout)) == 3
    assert typed("ps", "-p", "many", "--limit", "3").stderr == ""


def test_columns_of_time_have_one_meaning(typed: Type, server: Served) -> None:
    with server.client() as client:
        cancelled(client)
    header, row = typed("ps", "-a", "-p", "times").stdout.splitlines()
    assert header.split() == ["NAME", "KIND", "STATE", "INSTANCES", "SUBMITTED", "FINISHED"]
    assert row.split()[-1] == "now" or row.endswith("ago")
    assert "after submission" in typed("show", "times/over").stdout


def cancelled(client: Client) -> None:
    client.workloads.submit({"project": "times", "name": "over", "command": "true"})
    client.workloads.cancel("times", "over")


def test_resources_are_shown_in_one_order_whatever_the_order_of_the_document(typed: Type, server: Served) -> None:
    wanted = {"licences": 1, "disk": "2GiB", "memory": "1GiB", "apples": 3, "cpu": 2}
    printed = set()
    for resources in (wanted, dict(reversed(wanted.items()))):
        name = f"ordered-{next(NUMBERS)}"
        with server.client() as client:
            client.workloads.submit({"name": name, "command": "true", "resources": resources})
        printed |= {line for line in typed("show", name).stdout.splitlines() if line.startswith("Needs:")}
        typed("cancel", name)
    assert printed == {"Needs:      cpu 2, memory 1GiB, disk 2GiB, apples 3, licences 1"}


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        (None, ""),
        (OutputsSummary(digest="sha256:00", files=1, size=2048), "1 file (2KiB)"),
        (OutputsSummary(digest="sha256:00", files=2, size=4), "2 files (4B)"),
        (
            OutputsSummary(gaps=[GapView("*.xml", "missing", True, "no file matches")], gaps_count=3),
            "none\n*.xml: no file matches, required\nand 2 more",
        ),
    ],
)
def test_show_sums_up_outputs_with_a_line_for_each_gap(outputs: OutputsSummary | None, text: str) -> None:
    assert format_outputs(InstanceView(project="p", name="n", index=0, state="failed", outputs=outputs)) == text


def test_what_was_not_measured_is_named_and_not_shown_as_zero() -> None:
    known = RunUsageView(wall_ms=9, cpu_ms=1_500, memory_max=64 << 20, io_read=0, io_written=4_096)
    assert run_usage_text(known) == "1.5s of cpu, 64MiB of memory, 0B read, 4KiB written"
    small = RunUsageView(wall_ms=9, cpu_ms=0, memory_max=12 << 20, memory_is_bound=True, unmeasured=["io"])
    assert run_usage_text(small) == "0ms of cpu, less than 12MiB of memory; io not measured on this node"
    unknown = RunUsageView(wall_ms=9, unmeasured=["cpu", "memory", "io"])
    assert run_usage_text(unknown) == "cpu, memory, io not measured on this node"
    assert run_usage_text(None) == ""
