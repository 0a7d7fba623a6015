"""roost nodes: the machines there are; one of them in detail; forgetting one that is gone."""

from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, amount, clock, plain, print_json, print_table, say, took
from roost.cli.past import at_option, settle
from roost.cli.session import connect, json_option
from roost.cli.targets import Target

if TYPE_CHECKING:
    from roost.client.types import Instance, Node, Room

HEADER = ("NODE", "STATUS", "POOL", "ZONE", "CPU", "MEMORY", "DISK", "RUNNING")


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost nodes
  roost nodes show node-1
  roost nodes remove node-1     one that is lost or drained, and will not come back
\b
Next: `roost cordon NODE` keeps new work away, `roost drain NODE` takes a node out of service; `roost agent` adds one.
""",
)
@at_option
@json_option
@click.pass_context
def nodes(ctx: click.Context, at: str, as_json: bool) -> None:
    """List nodes; look at one; remove one that is gone."""
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.nodes(at=settle(client, at))
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(node) for node in found])
    if not found and not at:
        say("there are no nodes; `roost agent` makes a machine one, `roost up` comes with one")


@nodes.command(
    epilog="""\b
Examples:
  roost nodes show node-1
  roost nodes show node-1 --json
  roost nodes show node-1 --at 14:30
\b
Next: `roost drain NODE` to empty it.
"""
)
@click.argument("name", metavar="NODE")
@at_option
@json_option
def show(name: str, at: str, as_json: bool) -> None:
    """Show one node: status, what is given away and measured, what runs there, and its story."""
    with connect() as client:
        node = client.node(name, at=settle(client, at))
    if as_json:
        print_json(node)
        return
    for line in diagnosis(node):
        click.echo(line)
    if node.instances:
        click.echo()
        print_table(("INSTANCE", "STATE", "SINCE", "RUNNING FOR"), [_instance_row(each) for each in node.instances])
    if node.story:
        click.echo()
        print_table(("TIME", "STATUS", "CAUSE"), [(clock(line.at_ms), line.state, line.cause) for line in node.story])


@nodes.command(
    epilog="""\b
Examples:
  roost nodes remove node-1
\b
Next: `roost nodes`. Its certificate is revoked: the machine comes back only with a new join token.
"""
)
@click.argument("name", metavar="NODE")
def remove(name: str) -> None:
    """Forget a node that is lost or drained and will not come back, and revoke its certificate."""
    with connect() as client:
        client.remove_node(name)
    say(f"node {name} is removed")


def diagnosis(node: "Node") -> list[str]:
    """What there is to know of a node, line by line."""
    where = ", ".join(f"{word} {value}" for word, value in _places(node) if value)
    lines = [f"Node:     {node.name}", f"Status:   {node.status}{_extra(node)}", f"Where:    {where}"]
    lines.append(f"Joined:   {ago(node.joined_ms)}")
    lines.append(f"Drivers:  {', '.join(node.drivers) or '-'}")
    if node.taints:
        lines.append(f"Taints:   {', '.join(node.taints)}")
    if node.devices:
        free = ", ".join(f"{number}: {amount('gpu_milli', free)} free" for number, free in enumerate(node.devices))
        lines.append(f"GPUs:     {node.gpu_model or 'of unknown model'} ({free})")
    if node.ports:
        lines.append(f"Ports:    {', '.join(map(str, node.ports))} given away")
    if node.labels:
        lines.append("Labels:   " + ", ".join(f"{name}={value}" for name, value in sorted(node.labels.items())))
    lines.append("Given away:")
    lines += [f"  {plain(name):<10} {_share(name, room)}" for name, room in node.resources.items()]
    if node.usage is not None:
        used = {"cpu_milli": node.usage.cpu_milli, "memory": node.usage.memory, "disk": node.usage.disk}
        lines.append("Measured:")
        lines += [f"  {plain(name):<10} {_measured(name, value, node)}" for name, value in used.items()]
    lines.append(f"Running:  {node.running}")
    return lines


def _row(node: "Node") -> tuple[str, ...]:
    rooms = [node.resources.get(name) for name in ("cpu_milli", "memory", "disk")]
    names = ("cpu_milli", "memory", "disk")
    shown = [
        f"{amount(name, room.used)}/{amount(name, room.total)}" if room else "-"
        for name, room in zip(names, rooms, strict=True)
    ]
    status = f"{node.status}, flaky" if node.flaky_until_ms else node.status
    return (node.name, status, node.pool, node.zone or "-", *shown, str(node.running))


def _instance_row(instance: "Instance") -> tuple[str, ...]:
    name = str(Target(instance.project, instance.name, instance.index))
    return name, instance.state, ago(instance.since_ms), took(instance.started_ms, instance.finished_ms)


def _places(node: "Node") -> list[tuple[str, str]]:
    return [("pool", node.pool), ("zone", node.zone), ("rack", node.rack), ("region", node.region), ("arch", node.arch)]


def _extra(node: "Node") -> str:
    if node.flaky_until_ms and node.connected:
        return f", flaky: others are preferred until {clock(node.flaky_until_ms)}"
    if node.drain_until_ms and node.status == "draining":
        return f", what still runs moves at {clock(node.drain_until_ms)}"
    return "" if node.connected else ", not connected"


def _share(name: str, room: "Room") -> str:
    percent = 100 * room.used / room.total if room.total else 0.0
    return f"{amount(name, room.used)} of {amount(name, room.total)} ({percent:.0f}%)"


def _measured(name: str, value: int, node: "Node") -> str:
    room = node.resources.get(name)
    share = f" ({100 * value / room.total:.0f}%)" if room and room.total else ""
    return f"{amount(name, value)} in use{share}"
