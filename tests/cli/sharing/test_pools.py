"""roost pools: strategy and overcommit from the command line, typed at a server that has no nodes."""

import json
from itertools import count

import pytest

from roost.cli.common.exit_codes import FAILED, USAGE
from tests.cli.conftest import Type

NUMBERS = count()


@pytest.fixture
def name() -> str:
    return f"pool-{next(NUMBERS)}"


def test_set_list_and_unset(typed: Type, name: str) -> None:
    result = typed("pools", "set", name, "--strategy", "best_fit", "--overcommit", "cpu=1.5")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"pool {name}: strategy best_fit; overcommit cpu 1.5" in result.stderr
    row = next(line for line in typed("pools").stdout.splitlines() if line.split()[0] == name)
    assert row.split() == [name, "ready", "0", "best_fit", "-", "-", "-", "cpu", "1.5"]
    assert name in typed("pools", "unset", name).stderr
    assert name not in typed("pools").stdout
    assert typed("pools", "unset", name).exit_code == FAILED


def test_what_is_not_given_stays(typed: Type, name: str) -> None:
    typed("pools", "set", name, "--strategy", "best_fit", "--overcommit", "cpu=1.5")
    set_ = json.loads(typed("pools", "set", name, "--overcommit", "memory=2", "--json").stdout)
    assert (set_["strategy"], set_["overcommit"]) == ("best_fit", {"cpu": 1.5, "memory": 2.0})
    set_ = json.loads(typed("pools", "set", name, "--strategy", "default", "--json").stdout)
    assert (set_["strategy"], set_["overcommit"]) == ("", {"cpu": 1.5, "memory": 2.0})
    assert json.loads(typed("pools", "unset", name, "--json").stdout) == {"name": name}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (("--strategy", "psychic"), "strategy"),
        (("--overcommit", "cpu=lots"), "--overcommit cpu"),
        (("--overcommit", "cpu=0.5"), "overcommit.cpu"),
        (("--overcommit", "cpu=nan"), "overcommit.cpu"),
        (("--overcommit", "disk=1"), "overcommit.disk"),
        (("--overcommit", "1.5"), "NAME=VALUE"),
        (("--when-failed", "panic"), "when_failed"),
        (("--fallback", "nowhere"), "fallback"),
        (("--fail-after", "soon"), "fail_after"),
        (("--label", "disk"), "NAME=VALUE"),
        (("--taint", ":soft"), "taints[0]"),
        (("--project", "a b"), "projects[0]"),
        (("--clear", "everything"), "--clear"),
        ((), "--strategy"),
    ],
)
def test_wrong_values_are_wrong_usage_and_set_nothing(
    typed: Type, name: str, message: tuple[str, ...], text: str
) -> None:  # fmt: skip
    result = typed("pools", "set", name, *message)
    assert result.exit_code == USAGE
    assert text in result.stderr
    assert name not in typed("pools", "--json").stdout


def test_everything_that_can_be_set_is_kept_shown_and_cleared(typed: Type, name: str) -> None:
    typed("pools", "set", f"{name}-spare", "--strategy", "best_fit")
    arguments = ("--label", "disk=nvme", "--taint", "gpu", "--zone", "z1", "--rack", "r1", "--region", "eu",
             "--project", "ml", "--when-failed", "cancel", "--fallback", f"{name}-spare",
             "--fail-after", "5m")  # fmt: skip
    set_ = json.loads(typed("pools", "set", name, *arguments, "--json").stdout)
    assert (set_["labels"], set_["taints"], set_["projects"]) == ({"disk": "nvme"}, ["gpu"], ["ml"])
    assert (set_["zone"], set_["rack"], set_["region"]) == ("z1", "r1", "eu")
    assert (set_["when_failed"], set_["fallback"], set_["fail_after_ms"]) == ("cancel", f"{name}-spare", 300_000)
    more = json.loads(typed("pools", "set", name, "--label", "arch=arm", "--json").stdout)
    assert more == {**set_, "labels": {"arch": "arm", "disk": "nvme"}}, "what is not given stays"
    shown = typed("pools", "show", name).stdout
    for line in (
        "Status:      ready", "Labels:      arch=arm, disk=nvme", "Taints:      gpu", "For:         ml",
        "Where:       zone z1, rack r1, region eu", f"work is cancelled; its work goes to pool {name}-spare",
        "it is marked failed after 5m without a connected node",
    ):  # fmt: skip
        assert line in shown
    cleared = json.loads(typed("pools", "set", name, "--clear", "projects", "--clear", "fail_after", "--json").stdout)
    assert (cleared["projects"], cleared["fail_after_ms"], cleared["zone"]) == ([], None, "z1")


def test_a_pool_fails_is_emptied_and_is_well_again(typed: Type, name: str) -> None:
    typed("pools", "set", name, "--strategy", "best_fit")
    failed = typed("pools", "mark", name, "failed", "--reason", "power is out")
    assert f"pool {name} has failed: power is out" in failed.stderr
    row = next(line for line in typed("pools").stdout.splitlines() if line.split()[0] == name)
    assert row.split()[1] == "failed"
    assert "Status:      failed (by operator): power is out" in typed("pools", "show", name).stdout
    assert json.loads(typed("pools", "drain", name, "--json").stdout)["status"] == "draining"
    assert f"pool {name} is ready" in typed("pools", "mark", name, "ready").stderr
    assert typed("pools", "mark", name, "failed").exit_code == USAGE, "a reason is needed"
    assert typed("pools", "mark", "nowhere", "failed", "--reason", "x").exit_code == FAILED
    assert typed("pools", "show", "nowhere").exit_code == FAILED


def test_set_answers_with_what_holds_now(typed: Type) -> None:
    typed("pools", "set", "answered", "--label", "disk=nvme", "--taint", "gpu")
    answer = typed("pools", "set", "answered", "--strategy", "best_fit", "--fail-after", "5m").stderr
    assert answer == (
        "roost: pool answered: strategy best_fit; overcommit -; labels disk=nvme; taints gpu; for all projects; "
        "if it fails unfinished work is moved; it is marked failed after 5m without a connected node\n"
    )
