"""roost schedules, typed at a server that has no nodes; and retry --failed."""

import json
import re
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from roost.cli.common import output
from roost.cli.common.exit_codes import FAILED, TIMED_OUT, USAGE
from roost.cli.work import schedules
from roost.schema.schedules import RunView, ScheduleView
from tests.cli.conftest import Type

NUMBERS = count()
NEVER_SOON = "0 0 29 2 *"


@pytest.fixture
def name(typed: Type, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a schedule that was applied."""
    name = f"schedule-{next(NUMBERS)}"
    file = tmp_path_factory.mktemp(name) / "nightly.yaml"
    file.write_text(
        f"name: {name}\ncommand: 'true'\nschedule: {{cron: '{NEVER_SOON}', zone: Asia/Kolkata, overlap: allow}}\n"
    )
    assert typed("apply", "-f", str(file)).exit_code == 0
    return name


def row_of(printed: str, name: str) -> list[str]:
    return next(line.split() for line in printed.splitlines() if line.split()[0] == name)


def test_schedules_are_listed_with_their_next_tick(typed: Type, name: str) -> None:
    row = row_of(typed("schedules").stdout, name)
    assert row[1:7] == [*NEVER_SOON.split(), "Asia/Kolkata"]
    assert row[7].endswith("-02-29")
    assert row[8] == "00:00"
    (found,) = [load for load in json.loads(typed("schedules", "--json").stdout) if load["name"] == name]
    in_utc = datetime.fromtimestamp(found["next_ms"][0] / 1_000, UTC)
    assert (in_utc.hour, in_utc.minute) == (18, 30)  # by the clocks of its zone, whatever those of this machine are
    assert row[9:] == ["-", "-", "-"]
    (found,) = [load for load in json.loads(typed("schedules", "--json").stdout) if load["name"] == name]
    assert (found["cron"], len(found["next_ms"]), found["ended"]) == (NEVER_SOON, 1, False)


def test_the_coming_ticks_are_shown(typed: Type, name: str) -> None:
    lines = [line.split() for line in typed("schedules", "--next", "3").stdout.splitlines()]
    ticks = [line[2] for line in lines if line[0] == name]
    assert [tick[4:] for tick in ticks] == ["-02-29"] * 3
    assert {tuple(line[1::2]) for line in lines if line[0] == name} == {("Asia/Kolkata", "00:00")}
    assert ticks == sorted(set(ticks))
    assert typed("schedules", "--next", "11").exit_code == USAGE


def test_the_two_hours_of_a_long_night_differ_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [int(datetime.fromisoformat(f"2026-10-25T{clock}Z").timestamp() * 1_000) for clock in ("00:30", "01:30")]
    view = ScheduleView(
        project="default", name="nightly-backup", cron="*/30 * * * *", zone="Europe/Berlin", overlap="skip",
        catch_up=1, history_limit=10, ended=False, next_ms=ticks[1:], last_ms=ticks[0],
        runs=[RunView(name="nightly-backup-202610250230", state="succeeded", tick_ms=ticks[0])],
    )  # fmt: skip
    monkeypatch.setattr(output, "_terminal_width", lambda _: 80)
    runner = CliRunner()
    with runner.isolation() as (printed, *_):
        output.print_table(schedules.HEADER, [schedules._row(view)])
        lines = printed.getvalue().decode().splitlines()
    assert "2026-10-25 02:30+01:00  2026-10-25 02:30+02:00" in lines[1]
    assert max(map(len, lines)) <= 80
    later = msgspec.structs.replace(view, next_ms=[tick + 86_400_000 for tick in ticks], runs=[])
    assert schedules._ticks(later) == ["2026-10-26 01:30", "2026-10-26 02:30"]


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
    assert row_of(typed("schedules", "--next", "2").stdout, name)[2] == "ended"


def test_a_schedule_is_shown_with_its_zone_its_next_and_its_last_run(typed: Type, name: str) -> None:
    printed = typed("show", name).stdout
    assert "State:      scheduled\n" in printed
    assert f"Schedule:   {NEVER_SOON}, zone Asia/Kolkata\n" in printed
    assert re.search(r"Next run: +\d{4}-02-29 00:00\+05:30, in \d+d", printed)
    assert "Last run:   none\n" in printed
    assert "Instance:" not in printed
    run = typed("schedules", "run", name).stdout.strip()
    typed("cancel", run)
    printed = typed("show", name).stdout
    assert re.search(rf"Last run: +{run} is cancelled \(cancelled by root\), tick \d{{4}}-.*\+05:30", printed)
    shown = json.loads(typed("show", name, "--json").stdout)
    assert (shown["state"], shown["more"], shown["schedule"]["runs"][0]["state"]) == ("scheduled", 0, "cancelled")
    assert shown["schedule"]["next_ms"][0] > shown["schedule"]["last_ms"] > 1_700_000_000_000
    result = typed("logs", name)
    assert result.exit_code == FAILED
    assert f"each run has logs of its own; `roost logs {run}`" in result.stderr


def test_scheduled_is_a_state_to_ask_for_and_not_one_to_wait_in(typed: Type, name: str, tmp_path: Path) -> None:
    assert row_of(typed("ps").stdout, name)[1:3] == ["job", "scheduled"]
    assert row_of(typed("ps", "--state", "scheduled").stdout, name)[2] == "scheduled"
    assert name not in typed("ps", "--state", "queued").stdout
    why = typed("why", name).stdout
    assert "-02-29 00:00+05:30 (Asia/Kolkata)" in why
    assert re.search(r"Start: +not before \d+d.* \(its next tick\)", why)
    result = typed("wait", name, "--for", "started", "--timeout", "1h")
    assert result.exit_code == USAGE
    assert f"default/{name} is scheduled and never started itself" in result.stderr
    assert typed("wait", name, "--timeout", "10ms").exit_code == TIMED_OUT
    file = tmp_path / "again.yaml"
    file.write_text(f"name: {name}-b\ncommand: 'true'\nschedule: '{NEVER_SOON}'\n")
    assert typed("apply", "-f", str(file), "--wait", "--timeout", "1h").exit_code == 0
    typed("cancel", f"{name}-b")


def test_a_schedule_that_maintenance_pauses_says_so(typed: Type, name: str) -> None:
    typed("maintenance", "on", "--reason", "new switches")
    try:
        assert "paused by maintenance" in typed("schedules").stdout
        assert f"{NEVER_SOON}, zone Asia/Kolkata (paused by maintenance)" in typed("show", name).stdout
    finally:
        typed("maintenance", "off")


def test_only_what_failed_is_retried_if_that_is_wanted(typed: Type) -> None:
    name = f"schedule-{next(NUMBERS)}"
    typed("run", "--detach", "--name", name, "--", "true")
    typed("cancel", name)
    result = typed("retry", name, "--failed")
    assert result.exit_code == FAILED
    assert f"nothing of default/{name} has failed" in result.stderr
    assert typed("retry", name).exit_code == 0
    typed("cancel", name)
