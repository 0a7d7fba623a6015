"""Times of the past on the command line: how they are written, and how they are shown."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

import click

from roost.cli.common.format import AS_OF, current_ms, day_and_time
from roost.cli.common.options import Decorated
from roost.cli.common.output import echo_err
from roost.client import Client
from roost.model.errors import Invalid
from roost.model.spec.units import duration_ms, is_moment, past_ms

EXAMPLES = "a duration ago (2h), a time (14:30, 2026-01-31, 2026-01-31T14:30, with Z or +01:00 if not local)"
MILLISECONDS_DIGITS = 12  # a number of seconds ago has fewer digits than milliseconds since 1970, as --json has them


class Past(str):
    """A past time as the server reads it. `of_day`: it was given without a day."""

    of_day: datetime | None = None


class PastType(click.ParamType[str]):
    """A past time as the server reads it: RFC 3339, a duration ago, or @REVISION."""

    name = "TIME"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            if not value or value.startswith("@"):
                return value
            if value.isdecimal() and len(value) >= MILLISECONDS_DIGITS:
                return datetime.fromtimestamp(int(value) / 1_000).astimezone().isoformat()
            if not is_moment(value):
                duration_ms(value, "")
                return value
            # Without a zone it is local, and without a day the last time of that name.
            text, now = value.strip(), datetime.now().astimezone()
            moment = datetime.fromisoformat(text if "-" in text else f"{now.date()}T{text}")
            moment = moment if moment.tzinfo else moment.astimezone()
            if "-" not in text and moment > now:
                moment -= timedelta(days=1)
            past = Past(moment.isoformat())
            past.of_day = moment if "-" not in text else None
            return past
        except (Invalid, ValueError, OverflowError):
            self.fail(f"{value!r:.60} is none; give {EXAMPLES}, or @REVISION where a state is meant", param, ctx)


PAST = PastType()


def _past_option(name: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, type=PAST, default="", metavar="TIME", help=help)


at_option = _past_option("--at", "Show the state at a time: 2h (ago), 14:30, 2026-01-31T14:30 or @REVISION.")


def period_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --since and --until: 22:00 until 06:00 is last night; a period that ends before it begins is an error."""

    @_past_option("--since", "Only after this time: 2h (ago), 14:30 (the last one).")
    @_past_option("--until", "Only before this time.")
    @wraps(command)
    def checked(since: str, until: str, **given: Any) -> Any:
        now_ms = current_ms()
        if since and until and past_ms(since, "", now_ms) >= past_ms(until, "", now_ms):
            if not isinstance(since, Past) or since.of_day is None:
                raise click.UsageError(f"--since {since} is not before --until {until}: there is no time between them")
            since = (since.of_day - timedelta(days=1)).isoformat()
        return command(since=since, until=until, **given)

    return checked


def settle(client: Client, at: str) -> str:
    """The commit of a time, for all requests of a command; shown on stderr. Ages are those of that moment then."""
    if not at:
        return ""
    moment = client.history.moment(at)
    gap = f"; {moment.gap}" if moment.gap else ""
    echo_err(f"as of {day_and_time(moment.at_ms)} (revision {moment.revision}){gap}")
    click.get_current_context().meta[AS_OF] = moment.at_ms
    return moment.token
