"""roost reserve, roost reservations: nodes reserved for one project."""

from datetime import UTC, datetime

import click

from roost.cli.common.format import from_now, moment
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output, connect, deletion, json_output, listing
from roost.client import Client
from roost.model.errors import Invalid
from roost.model.spec.units import duration_ms, is_moment, moment_ms
from roost.schema.projects import ReservationView

HEADER = ("RESERVATION", "PROJECT", "STATE", "FROM", "UNTIL", "NODES")
NODES_SHOWN = 5  # names in a table; --json has them all


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--project", "-p", required=True, help="Project that may use the nodes.")
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Node to reserve; repeatable.")
@click.option("--nodes", "count", type=int, default=None, metavar="COUNT",
              help="Number of nodes; those with the least work of others are taken.")  # fmt: skip
@click.option("--pool", default="", help="Pool of the nodes. [default: any]")
@click.option("--from", "start", default=None, metavar="WHEN",
              help="Time with zone (2030-01-31T18:00Z) or duration from now (2h). [default: now]")  # fmt: skip
@click.option("--for", "length", default=None, metavar="DURATION",
              help="Duration from the start. [default: until it is cancelled]")  # fmt: skip
@json_output
def reserve(
    name: str, project: str, nodes: tuple[str, ...], count: int | None, pool: str, start: str | None, length: str | None
) -> Output:
    """Reserve nodes for one project, from a given time.

    Examples:
      roost reserve release --project web --node node-1 --node node-2 --for 2h
      roost reserve night --project research --nodes 4 --pool gpu --from 2030-01-31T22:00+01:00 --for 8h
      roost reserve demo --project web --nodes 1 --from 30m

    From the start, only work of the project is placed there, and other work moves. Before it, other work is placed
    there only if its `timeout` ends in time.

    Next: `roost reservations`; `roost reservations cancel NAME` gives the nodes back.
    """
    if bool(nodes) == (count is not None):
        raise click.UsageError("give either the nodes (--node NODE) or their number (--nodes COUNT)")
    end = _end(start, length)
    with connect() as client:
        made = client.reservations.create(name, project, nodes=nodes, count=count, pool=pool, start=start, end=end)
    when = "now" if made.active else f"from {moment(made.start_ms)}"
    until = moment(made.end_ms) if made.end_ms else "it is cancelled"
    return Output(made, f"{_nodes(made)} reserved for project {made.project} {when} until {until}")


@listing("reservations")
@client_output
def reservations(client: Client) -> Output:
    """List current and future reservations; cancel one.

    Examples:
      roost reservations
      roost reservations cancel night

    Next: `roost reserve NAME --project P --nodes COUNT` makes one.
    """
    empty = "there are no reservations; `roost reserve NAME --project P --nodes COUNT` makes one"
    return listed(client.reservations.list(), HEADER, _row, empty)


deletion(
    reservations, "cancel", "NAME", "reservations", "Cancel a reservation.",
    example="night", done="reservation {} is cancelled",
    then="`roost reservations`. Running work of the project stays there.",
)  # fmt: skip


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


def _row(reservation: ReservationView) -> tuple[str, ...]:
    until = moment(reservation.end_ms) if reservation.end_ms else "cancelled"
    state = "active" if reservation.active else f"in {from_now(reservation.start_ms)}"
    return reservation.name, reservation.project, state, moment(reservation.start_ms), until, _nodes(reservation)


def _nodes(reservation: ReservationView) -> str:
    first = ", ".join(reservation.nodes[:NODES_SHOWN])
    more = len(reservation.nodes) - NODES_SHOWN
    return f"{first} and {more} more" if more > 0 else first
