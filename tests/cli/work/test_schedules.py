"""roost schedules, typed at a server that has no nodes; and retry --failed."""

import json
from itertools import count

import pytest

from roost.cli.common.exit_codes import FAILED, USAGE
from tests.cli.conftest import Type

NUMBERS = count()
NEVER_SOON = "0 0 29 2 *"


@pytest.fixture
def name(typed: Type, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a schedule that was applied."""
    name = f"schedule-{next(NUMBERS)}"
    file = tmp_path_factory.mktemp(name) / "nightly.yaml"
    file.write_text(f"name: {name}\ncommand: 'true'\nschedule: {{cron: '{NEVER_SOON}', overlap: allow}}\n")
    assert typed("apply", "-f", str(file)).exit_code == 0
    return name


def row_of(printed: str, name: str) -> list[str]:
    return next(line.split() for line in printed.splitlines() if line.split()[0] == name)


def test_schedules_are_listed_with_their_next_tick(typed: Type, name: str) -> None:
    row = row_of(typed("schedules").stdout, name)
    assert row[1:7] == [*NEVER_SOON.split(), "UTC"]
    assert row[7].endswith("-02-29")
    assert row[9:] == ["-", "-", "-"]
    (found,) = [load for load in json.loads(typed("schedules", "--json").stdout) if load["name"] == name]
    assert (found["cron"], len(found["next_ms"]), found["ended"]) == (NEVER_SOON, 1, False)


def test_the_coming_ticks_are_shown(typed: Type, name: str) -> None:
    lines = [line.split() for line in typed("schedules", "--next", "3").stdout.splitlines()]
    ticks = [line[1] for line in lines if line[0] == name]
    assert [tick[4:] for tick in ticks] == ["-02-29"] * 3
    assert ticks == sorted(set(ticks))
    assert typed("schedules", "--next", "11").exit_code == USAGE


def test_a_schedule_is_run_besides_its_ticks(typed: Type, name: str) -> None:
    result = typed("schedules", "run", name)
    assert result.exit_code == 0
    run = result.stdout.strip()
    assert run.startswith(f"{name}-20")
    assert json.loads(typed("schedules", "run", name, "--json").stdout)["name"] == f"{run}-2"
    row = row_of(typed("schedules").stdout, name)
    assert row[-2:] == ["queued", "-"]
    assert typed("schedules", "run", "nobody").exit_code == FAILED
    for item in (run, f"{run}-2"):
        typed("cancel", item)


def test_a_cancelled_schedule_is_ended(typed: Type, name: str) -> None:
    typed("cancel", name)
    assert row_of(typed("schedules").stdout, name)[7] == "ended"
    assert row_of(typed("schedules", "--next", "2").stdout, name)[1] == "ended"


def test_only_what_failed_is_retried_if_that_is_wanted(typed: Type) -> None:
    name = f"schedule-{next(NUMBERS)}"
    typed("run", "--detach", "--name", name, "--", "true")
    typed("cancel", name)
    result = typed("retry", name, "--failed")
    assert result.exit_code == FAILED
    assert f"nothing of default/{name} has failed" in result.stderr
    assert typed("retry", name).exit_code == 0
    typed("cancel", name)
