"""roost reserve, roost reservations: nodes set aside for one project, from a moment to a moment."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from roost.cli.output import print_json, print_table, say
from roost.cli.session import connect, json_option
from roost.model.errors import Invalid
from roost.model.units import duration_ms, is_moment, moment_ms, show_duration

if TYPE_CHECKING:
    from roost.client.setting_types import Reservation

HEADER = ("RESERVATION", "PROJECT", "STATE", "FROM", "UNTIL", "NODES")
NODES_SHOWN = 5  # names in a table; --json has them all


@click.command(
    epilog="""\b
Examples:
  roost reserve release --project web --node node-1 --node node-2 --for 2h
  roost reserve night --project research --nodes 4 --pool gpu --from 2030-01-31T22:00+01:00 --for 8h
  roost reserve demo --project web --nodes 1 --from 30m
\b
From the start only the project's work goes there, and what others run there moves. Before it, only what is sure to be
gone in time (`timeout`) is placed there.
\b
Next: `roost reservations`; `roost reservations cancel NAME` gives the nodes back.
"""
)
@click.argument("name", metavar="NAME")
@click.option("--project", "-p", required=True, help="For whom.")
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="A node to keep; may be given several times.")
@click.option("--nodes", "count", type=int, default=None, metavar="COUNT", help="Or how many; those with the least "
              "work of others are taken.")  # fmt: skip
@click.option("--pool", default="", help="The pool from which they are chosen. [default: any]")
@click.option("--from", "start", default=None, metavar="WHEN", help="A moment with its zone (2030-01-31T18:00Z) or a "
              "duration from now (2h). [default: now]")  # fmt: skip
@click.option("--for", "length", default=None, metavar="DURATION", help="How long, from its start. [default: until it "
              "is cancelled]")  # fmt: skip
@json_option
def reserve(
    name: str, project: str, nodes: tuple[str, ...], count: int | None, pool: str, start: str | None,
    length: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Keep nodes for one project, from a moment on."""
    if bool(nodes) == (count is not None):
        raise click.UsageError("say either which nodes (--node NODE) or how many (--nodes COUNT)")
    end = _end(start, length)
    with connect() as client:
        made = client.reserve(name, project, nodes=nodes, count=count, pool=pool, start=start, end=end)
    if as_json:
        print_json(made)
    else:
        when = "now" if made.active else f"from {_moment(made.start_ms)}"
        say(f"{_nodes(made)} kept for project {made.project} {when} {_until(made)}")


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost reservations
  roost reservations cancel night
\b
Next: `roost reserve NAME --project P --nodes COUNT` makes one.
""",
)
@json_option
@click.pass_context
def reservations(ctx: click.Context, as_json: bool) -> None:
    """List reservations, those that begin later included; cancel one."""
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.reservations()
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(each) for each in found])
    if not found:
        say("nothing is reserved; `roost reserve --help` shows how")


@reservations.command(
    epilog="""\b
Examples:
  roost reservations cancel night
\b
Next: `roost reservations`. What the project runs there goes on; others may come again.
"""
)
@click.argument("name", metavar="NAME")
@json_option
def cancel(name: str, as_json: bool) -> None:
    """Give the nodes of a reservation back to everybody."""
    with connect() as client:
        client.cancel_reservation(name)
    if as_json:
        print_json({"name": name})
    else:
        say(f"reservation {name} is cancelled")


def _end(start: str | None, length: str | None) -> str | None:
    """The end as the server takes it. Durations stay durations: its clock counts, not this one's."""
    if length is None:
        return None
    lasting = duration_ms(length, "--for")
    begins = 0 if start is None else moment_ms(start, "--from", 0)
    if start is None or not is_moment(start):
        return f"{begins + lasting}ms"
    try:
        return datetime.fromtimestamp((begins + lasting) / 1_000, UTC).isoformat()
    except (ValueError, OverflowError):
        raise Invalid("--for", "that is longer than any calendar") from None


def _row(reservation: "Reservation") -> tuple[str, ...]:
    until = _moment(reservation.end_ms) if reservation.end_ms else "cancelled"
    state = "active" if reservation.active else f"in {_from_now(reservation.start_ms)}"
    return (
        reservation.name, reservation.project, state, _moment(reservation.start_ms), until, _nodes(reservation)
    )  # fmt: skip


def _nodes(reservation: "Reservation") -> str:
    first = ", ".join(reservation.nodes[:NODES_SHOWN])
    more = len(reservation.nodes) - NODES_SHOWN
    return f"{first} and {more} more" if more > 0 else first


def _until(reservation: "Reservation") -> str:
    return f"until {_moment(reservation.end_ms)}" if reservation.end_ms else "until it is cancelled"


def _moment(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1_000))


def _from_now(at_ms: int) -> str:
    return show_duration(max(0, at_ms - int(time.time() * 1_000)) // 1_000 * 1_000)
