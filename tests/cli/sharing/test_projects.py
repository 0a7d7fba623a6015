"""roost projects: weights and quotas from the command line; one real node on which a quota holds work back."""

import json
from collections.abc import Iterator
from itertools import count

import pytest

from roost.cli.common.exit_codes import FAILED, NOT_PLACED, USAGE
from tests.cli.conftest import Type
from tests.cli.serving import Served, up

NUMBERS = count()


@pytest.fixture
def name() -> str:
    return f"project-{next(NUMBERS)}"


def row(typed: Type, name: str) -> str:
    return next(line for line in typed("projects").stdout.splitlines() if line.split()[0] == name)


def test_set_list_and_unset(typed: Type, name: str) -> None:
    result = typed("projects", "set", name, "--weight", "2", "--quota", "cpu=10", "--quota", "memory=4GiB", "--borrow")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"project {name}: weight 2, quota cpu 10, memory 4GiB, may borrow" in result.stderr
    assert row(typed, name).split(None, 4)[1:] == ["2", "0.0%", "0", "cpu 0/10, memory 0/4GiB (may borrow)"]
    assert f"project {name} has weight 1 and no quota" in typed("projects", "unset", name).stderr
    assert name not in typed("projects").stdout
    assert typed("projects", "unset", name).exit_code == FAILED


def test_what_is_not_given_stays(typed: Type, name: str) -> None:
    typed("projects", "set", name, "--weight", "3", "--quota", "cpu=500m", "--quota", "gpu=1.5", "--count-only")
    typed("projects", "set", name, "--quota", "instances=5", "--quota", "gpu=none")
    set_ = json.loads(typed("projects", "set", name, "--no-borrow", "--json").stdout)
    assert (set_["weight"], set_["quota"], set_["counted"]) == (3, {"cpu_milli": 500, "instances": 5}, True)
    assert json.loads(typed("projects", "set", name, "--enforce", "--json").stdout)["counted"] is False


def test_a_quota_of_files_is_written_in_bytes(typed: Type, name: str) -> None:
    typed("projects", "set", name, "--quota", "file_bytes=4GiB", "--quota", "files=1000")
    assert row(typed, name).split(None, 4)[4] == "file_bytes 0/4GiB, files 0/1000"


def test_json_everywhere(typed: Type, name: str) -> None:
    assert json.loads(typed("projects", "set", name, "--weight", "2", "--json").stdout)["weight"] == 2
    assert name in [load["name"] for load in json.loads(typed("projects", "--json").stdout)]
    assert json.loads(typed("projects", "unset", name, "--json").stdout) == {"name": name}


def test_a_project_is_there_with_its_first_workload(typed: Type, name: str) -> None:
    assert typed("run", "-d", "-p", name, "--count", "3", "--", "true").exit_code == NOT_PLACED
    assert row(typed, name).split() == [name, "1", "0.0%", "3", "-"]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (("--weight", "0"), "weight"),
        (("--weight", "many"), "--weight"),
        (("--quota", "cpu"), "NAME=VALUE"),
        (("--quota", "cpu=lots"), "quota.cpu"),
        (("--quota", "instances=1.5"), "quota.instances"),
        ((), "--quota"),
    ],
)
def test_wrong_values_are_wrong_usage_and_set_nothing(
    typed: Type, name: str, message: tuple[str, ...], text: str
) -> None:  # fmt: skip
    result = typed("projects", "set", name, *message)
    assert result.exit_code == USAGE
    assert text in result.stderr
    assert name not in typed("projects", "--json").stdout


def test_a_name_that_cannot_be_is_wrong_usage(typed: Type) -> None:
    assert typed("projects", "set", "a.b", "--weight", "2").exit_code == USAGE


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up")) as served:
        yield served


def test_a_quota_keeps_a_job_waiting_and_raising_it_lets_it_run(one: Served) -> None:
    assert one.roost("projects", "set", "red", "--quota", "instances=1").returncode == 0
    run = ("run", "-d", "-p", "red", "--cpu", "100m")
    assert one.roost(*run, "--name", "first", "--", "sleep", "60").returncode == 0
    assert one.roost(*run, "--name", "second", "--", "echo", "at last").returncode == NOT_PLACED
    assert json.loads(one.roost("why", "red/second", "--json").stdout)["code"] == "quota_exceeded"
    (red,) = json.loads(one.roost("projects", "--json").stdout)
    assert (red["allocated"]["instances"], red["quota"], red["waiting"]) == (1, {"instances": 1}, 1)
    assert b"instances 1/1" in one.roost("projects").stdout
    assert one.roost("projects", "set", "red", "--quota", "instances=2").returncode == 0
    assert one.roost("wait", "red/second", "--timeout", "20s").returncode == 0
    assert one.roost("logs", "red/second").stdout == b"at last\n"
    assert one.roost("cancel", "red/first").returncode == 0


def test_pools_and_reservations_of_a_real_node(one: Served) -> None:
    (pool,) = json.loads(one.roost("pools", "--json").stdout)
    cpu = pool["resources"]["cpu_milli"]["total"]
    assert one.roost("pools", "set", "default", "--overcommit", "cpu=2").returncode == 0
    (pool,) = json.loads(one.roost("pools", "--json").stdout)
    assert pool["resources"]["cpu_milli"]["limit"] == 2 * cpu
    assert b"default" in one.roost("pools").stdout
    stored = one.roost("reserve", "kept", "--project", "blue", "--nodes", "1", "--for", "1h")
    assert (stored.returncode, b"node-1 reserved for project blue now" in stored.stderr) == (0, True)
    assert one.roost("run", "-d", "-p", "red", "--name", "out", "--", "true").returncode == NOT_PLACED
    assert one.roost("run", "-p", "blue", "--", "echo", "in").stdout == b"in\n"
    assert one.roost("reservations", "cancel", "kept").returncode == 0
    assert one.roost("wait", "red/out", "--timeout", "20s").returncode == 0


def test_what_processes_may_be_on_nodes(typed: Type, name: str) -> None:
    result = typed("projects", "set", name, "--isolation", "sandbox", "--run-as", "builder", "--run-as", "root")
    assert "; isolation sandbox; may run as builder, root" in result.stderr
    assert row(typed, name).endswith("- (isolation sandbox, may run as builder, root)")
    stays = json.loads(typed("projects", "set", name, "--weight", "2", "--json").stdout)
    assert (stays["isolation"], stays["run_as"]) == ("sandbox", ["builder", "root"])
    assert json.loads(typed("projects", "set", name, "--run-as", "none", "--json").stdout)["run_as"] == []
    assert typed("projects", "set", name, "--run-as", "No One").exit_code == USAGE
