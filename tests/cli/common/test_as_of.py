"""Times of the past: the last time of that name, periods over midnight, and ages as of the moment that is shown."""

from datetime import datetime, timedelta

import click
import pytest
from click.testing import CliRunner

from roost.cli.common.as_of import PAST, period_options
from roost.cli.common.exit_codes import USAGE
from roost.cli.common.format import AS_OF, ago, took


@click.command()
@period_options
def period(since: str, until: str) -> None:
    click.echo(f"{since} {until}")


@pytest.mark.parametrize("minutes", [-1, 1, 600])
def test_a_time_of_day_is_the_last_one(minutes: int) -> None:
    now = datetime.now().astimezone()
    text = f"{now + timedelta(minutes=minutes):%H:%M}"
    moment = datetime.fromisoformat(PAST.convert(text, None, None))
    assert f"{moment:%H:%M}" == text
    assert timedelta(0) <= datetime.now().astimezone() - moment <= timedelta(days=1)


def test_a_period_over_midnight_is_one_night() -> None:
    result = CliRunner().invoke(period, ["--since", "22:00", "--until", "06:00"])
    since, until = map(datetime.fromisoformat, result.stdout.split())
    assert (since.hour, until - since) == (22, timedelta(hours=8))
    assert until <= datetime.now().astimezone()


@pytest.mark.parametrize(("since", "until"), [("1h", "2h"), ("2026-02-01", "2026-01-01"), ("1h", "1h")])
def test_a_period_without_time_in_it_is_an_error(since: str, until: str) -> None:
    result = CliRunner().invoke(period, ["--since", since, "--until", until])
    assert result.exit_code == USAGE
    assert "there is no time between them" in result.stderr


def test_ages_are_those_of_the_moment_that_is_shown() -> None:
    with click.Context(period) as context:
        context.meta[AS_OF] = 100_000
        assert (ago(96_999), took(1_000, None)) == ("3s ago", "1m39s")
