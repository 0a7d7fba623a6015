"""roost nodes: list nodes, show one, remove one."""

import click

from roost.cli.common.as_of import at_option, settle
from roost.cli.common.output import ago, amount, clock, echo_err, plain, print_json, print_list, print_table, took
from roost.cli.common.session import connect, json_option, listing
from roost.cli.common.targets import Target
from roost.schema.nodes import NodeDetail, NodeView, ResourceUse
from roost.schema.work import InstanceView

HEADER = ("NODE", "STATUS", "POOL", "ZONE", "CPU", "MEMORY", "DISK", "RUNNING")


@listing("nodes")
@at_option
@json_option
def nodes(at: str, as_json: bool) -> None:
    """List nodes; show one; remove one.

    Examples:
      roost nodes
      roost nodes show node-1
      roost nodes remove node-1     a lost or drained node that will not come back

    Next: `roost cordon NODE` keeps new work away, `roost drain NODE` moves its work, `roost agent` adds a node.
    """
    with connect() as client:
        found = client.nodes.list(at=settle(client, at))
    empty = "" if at else "there are no nodes; `roost agent` makes a machine one, `roost up` comes with one"
    print_list(found, as_json, HEADER, _row, empty)


@nodes.command()
@click.argument("name", metavar="NODE")
@at_option
@json_option
def show(name: str, at: str, as_json: bool) -> None:
    """Show one node: status, allocation, measured usage, its instances and its story.

    Examples:
      roost nodes show node-1
      roost nodes show node-1 --json
      roost nodes show node-1 --at 14:30

    Next: `roost drain NODE` to empty it.
    """
    with connect() as client:
        node = client.nodes.get(name, at=settle(client, at))
    if as_json:
        print_json(node)
        return
    for line in diagnosis(node):
        click.echo(line)
    if node.instances:
        click.echo()
        print_table(
            ("INSTANCE", "STATE", "SINCE", "RUNNING FOR"), [_instance_row(instance) for instance in node.instances]
        )
    if node.story:
        click.echo()
        print_table(("TIME", "STATUS", "CAUSE"), [(clock(line.at_ms), line.state, line.message) for line in node.story])


@nodes.command()
@click.argument("name", metavar="NODE")
def remove(name: str) -> None:
    """Delete a lost or drained node, and revoke its certificate.

    Examples:
      roost nodes remove node-1

    Next: `roost nodes`. Its certificate is revoked: the machine needs a new join token to return.
    """
    with connect() as client:
        client.nodes.delete(name)
    echo_err(f"node {name} is removed")


def diagnosis(node: NodeDetail) -> list[str]:
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
        lines.append(f"Ports:    {', '.join(map(str, node.ports))} allocated")
    if node.labels:
        lines.append("Labels:   " + ", ".join(f"{name}={value}" for name, value in sorted(node.labels.items())))
    lines.append("Allocated:")
    lines += [f"  {plain(name):<10} {_share(name, room)}" for name, room in node.resources.items()]
    if node.usage is not None:
        used = {"cpu_milli": node.usage.cpu_milli, "memory": node.usage.memory, "disk": node.usage.disk}
        lines.append("Measured:")
        lines += [f"  {plain(name):<10} {_measured(name, value, node)}" for name, value in used.items()]
    lines.append(f"Running:  {node.running}")
    return lines


def _row(node: NodeView) -> tuple[str, ...]:
    rooms = [node.resources.get(name) for name in ("cpu_milli", "memory", "disk")]
    names = ("cpu_milli", "memory", "disk")
    shown = [
        f"{amount(name, room.used)}/{amount(name, room.total)}" if room else "-"
        for name, room in zip(names, rooms, strict=True)
    ]
    status = f"{node.status}, flaky" if node.flaky_until_ms else node.status
    return (node.name, status, node.pool, node.zone or "-", *shown, str(node.running))


def _instance_row(instance: InstanceView) -> tuple[str, ...]:
    name = str(Target(instance.project, instance.name, instance.index))
    return name, instance.state, ago(instance.since_ms), took(instance.started_ms, instance.finished_ms)


def _places(node: NodeView) -> list[tuple[str, str]]:
    return [("pool", node.pool), ("zone", node.zone), ("rack", node.rack), ("region", node.region), ("arch", node.arch)]


def _extra(node: NodeView) -> str:
    if node.flaky_until_ms and node.connected:
        return f", flaky: others are preferred until {clock(node.flaky_until_ms)}"
    if node.drain_until_ms and node.status == "draining":
        return f", running work moves at {clock(node.drain_until_ms)}"
    return "" if node.connected else ", not connected"


def _share(name: str, room: ResourceUse) -> str:
    percent = 100 * room.used / room.total if room.total else 0.0
    return f"{amount(name, room.used)} of {amount(name, room.total)} ({percent:.0f}%)"


def _measured(name: str, value: int, node: NodeView) -> str:
    room = node.resources.get(name)
    share = f" ({100 * value / room.total:.0f}%)" if room and room.total else ""
    return f"{amount(name, value)} in use{share}"
