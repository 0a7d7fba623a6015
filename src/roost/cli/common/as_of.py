"""Times of the past on the command line: how they are written, and how they are shown."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from roost.cli.common.format import day_and_time
from roost.cli.common.options import Decorated
from roost.cli.common.output import echo_err
from roost.model.errors import Invalid
from roost.model.spec.units import duration_ms, is_moment

if TYPE_CHECKING:
    from roost.client import Client

EXAMPLES = "a duration ago (2h), a time (14:30, 2026-01-31, 2026-01-31T14:30, with Z or +01:00 if not local)"


class PastType(click.ParamType[str]):
    """A past time as the server reads it: RFC 3339, a duration ago, or @REVISION."""

    name = "TIME"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:

        try:
            if not value or value.startswith("@"):
                return value
            if not is_moment(value):
                duration_ms(value, "")
                return value
            # Without a zone it is local, and without a day today.
            text = value.strip()
            moment = datetime.fromisoformat(text if "-" in text else f"{datetime.now().astimezone().date()}T{text}")
            return (moment if moment.tzinfo else moment.astimezone()).isoformat()
        except (Invalid, ValueError):
            self.fail(f"{value!r:.60} is none; give {EXAMPLES}, or @REVISION where a state is meant", param, ctx)


PAST = PastType()


def _past_option(name: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, type=PAST, default="", metavar="TIME", help=help)


at_option = _past_option("--at", "Show the state at a time: 2h (ago), 14:30, 2026-01-31T14:30 or @REVISION.")


def period_options(command: Decorated) -> Decorated:
    until = _past_option("--until", "Only before this time.")
    return _past_option("--since", "Only after this time: 2h (ago), 14:30.")(until(command))


def settle(client: "Client", at: str) -> str:
    """The commit of a time, for all requests of a command; shown on stderr."""
    if not at:
        return ""
    moment = client.history.moment(at)
    gap = f"; {moment.gap}" if moment.gap else ""
    echo_err(f"as of {day_and_time(moment.at_ms)} (revision {moment.revision}){gap}")
    return moment.token


def with_times(view: msgspec.Struct, *without: str) -> dict[str, Any]:
    """The fields of a view for programs: times `NAME_ms` become RFC 3339 `NAME`, at the end."""
    fields = {name: value for name, value in msgspec.structs.asdict(view).items() if name not in without}
    times = {name.removesuffix("_ms"): fields.pop(name) for name in list(fields) if name.endswith("_ms")}
    return fields | {name: _rfc3339(at_ms) for name, at_ms in times.items()}


def _rfc3339(at_ms: int | None) -> str | None:
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1_000).astimezone().isoformat(timespec="milliseconds")
