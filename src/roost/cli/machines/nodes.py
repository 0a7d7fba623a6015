"""roost nodes, cordon and uncordon: list, show and remove nodes, keep new work away and put them back."""

import click

from roost.cli.common.as_of import at_option, settle
from roost.cli.common.format import ago, amount, clock, ordered, plain, took
from roost.cli.common.output import Output, listed, print_fields, print_table
from roost.cli.common.session import client_output, deletion, listing
from roost.cli.common.targets import NODE, Target
from roost.client import Client
from roost.model.records.node import ENFORCEABLE
from roost.model.states import IsolationLevel
from roost.schema.nodes import NodeDetail, NodeView
from roost.schema.work import InstanceView

HEADER = ("NODE", "STATUS", "POOL", "ZONE", "CPU", "MEMORY", "DISK", "RUNNING")
RESOURCES = ("cpu_milli", "memory", "disk")


@listing("nodes")
@at_option
@client_output
def nodes(client: Client, at: str) -> Output:
    """List nodes; show one; remove one.

    Examples:
      roost nodes
      roost nodes show node-1
      roost nodes remove node-1     a lost or drained node that will not come back

    Next: `roost cordon NODE` keeps new work away, `roost drain NODE` moves its work, `roost agent` adds a node.
    """
    found = client.nodes.list(at=settle(client, at))
    empty = "" if at else "there are no nodes; `roost agent` makes a machine one, `roost up` comes with one"
    return listed(found, HEADER, _row, empty)


@nodes.command()
@click.argument("name", type=NODE, metavar="NODE")
@at_option
@client_output
def show(client: Client, name: str, at: str) -> Output:
    """Show one node: status, allocation, measured usage, its instances and its story.

    Examples:
      roost nodes show node-1
      roost nodes show node-1 --json
      roost nodes show node-1 --at 14:30

    Next: `roost drain NODE` to empty it.
    """
    node = client.nodes.get(name, at=settle(client, at))
    return Output(node, lambda: _show(node))


deletion(
    nodes, "remove", "NODE", "nodes", "Delete a lost or drained node, and revoke its certificate.",
    example="node-1", done="node {} is removed",
    key=NODE, then="`roost nodes`. Its certificate is revoked: the machine needs a new join token to return.",
)  # fmt: skip


def _show(node: NodeDetail) -> None:
    gpus = ", ".join(f"{number}: {amount('gpu_milli', free)} free" for number, free in enumerate(node.devices))
    places = ("pool", "zone", "rack", "region", "arch")
    fields = {
        "Node": node.name,
        "Status": f"{node.status}{_extra(node)}",
        "Where": ", ".join(f"{word} {value}" for word in places if (value := getattr(node, word))),
        "Joined": ago(node.joined_ms),
        "Drivers": ", ".join(node.drivers) or "-",
        "VMs": ", ".join(item.replace("/", " ") for item in node.vm),
        "Taints": ", ".join(node.taints),
        "Isolated": _isolated(node),
        "Limits": _limits(node),
        "GPUs": f"{node.gpu_model or 'of unknown model'} ({gpus})" if node.devices else "",
        "Ports": f"{', '.join(map(str, node.ports))} allocated" if node.ports else "",
        "Labels": ", ".join(f"{name}={value}" for name, value in sorted(node.labels.items())),
    }
    print_fields(fields, 11)
    click.echo("Allocated:")
    for name, room in ordered(node.resources):
        percent = 100 * room.used / room.total if room.total else 0.0
        click.echo(f"  {plain(name):<10} {amount(name, room.used)} of {amount(name, room.total)} ({percent:.0f}%)")
    if node.usage is not None:
        click.echo(f"Measured {ago(node.usage.measured_ms)}:")
        for name in RESOURCES:
            used, total = getattr(node.usage, name), name in node.resources and node.resources[name].total
            share = f" ({100 * used / total:.0f}%)" if total else ""
            click.echo(f"  {plain(name):<10} {amount(name, used)} in use{share}")
        for task, count in sorted(node.usage.task_restarts.items()):
            click.echo(f"  agent task {plain(task)} was restarted {count} times; see agent.log on the node")
    click.echo(f"Running:   {node.running}")
    if node.instances:
        click.echo()
        print_table(("INSTANCE", "STATE", "SINCE", "RUNNING FOR"), list(map(_instance_row, node.instances)))
    if node.story:
        click.echo()
        print_table(("TIME", "STATUS", "CAUSE"), [(clock(line.at_ms), line.state, line.message) for line in node.story])


def _isolated(node: NodeView) -> str:
    """What keeps processes apart there, as true for the user that they have."""
    user = "a user for each project" if node.users else f"the user {node.user or 'of its agent'}"
    match node.isolation:
        case IsolationLevel.SANDBOX:
            return f"in sandboxes, with {user}"
        case IsolationLevel.USER:
            return f"by {user}; not in sandboxes: runs see each other"
        case _:
            return f"no: runs have {user}"


def _limits(node: NodeView) -> str:
    """What the node enforces on its runs, and what it does not."""
    missing = [name for name in ENFORCEABLE if name not in node.enforces]
    enforced = ", ".join(node.enforces) or "none"
    return f"{enforced} enforced" + (f"; not enforced: {', '.join(missing)}" if missing else "")


def _row(node: NodeView) -> tuple[str, ...]:
    rooms = [(name, node.resources.get(name)) for name in RESOURCES]
    shown = [f"{amount(name, room.used)}/{amount(name, room.total)}" if room else "-" for name, room in rooms]
    status = f"{node.status}, flaky" if node.flaky_until_ms else node.status
    return (node.name, status, node.pool, node.zone or "-", *shown, str(node.running))


def _instance_row(instance: InstanceView) -> tuple[str, ...]:
    name = str(Target(instance.project, instance.name, instance.index))
    return name, instance.state, ago(instance.since_ms), took(instance.started_ms, instance.ran_until_ms)


def _extra(node: NodeView) -> str:
    if node.flaky_until_ms and node.connected:
        return f", flaky: others are preferred until {clock(node.flaky_until_ms)}"
    if node.drain_until_ms and node.status == "draining":
        return f", running work moves at {clock(node.drain_until_ms)}"
    return "" if node.connected else ", not connected"


@click.command()
@click.argument("name", type=NODE, metavar="NODE")
@client_output
def cordon(client: Client, name: str) -> Output:
    """Cordon a node: it takes no new work; running work stays.

    Examples:
      roost cordon node-1          no new work; running work stays
      roost uncordon node-1        take new work again

    Next: `roost drain NODE` to move its work away; `roost nodes` shows cordoned nodes.
    """
    node = client.nodes.cordon(name)
    return Output(node, f"node {node.name} is {node.status}; `roost uncordon {node.name}` puts it back")


@click.command()
@click.argument("name", type=NODE, metavar="NODE")
@client_output
def uncordon(client: Client, name: str) -> Output:
    """Put a cordoned, drained or flaky node back into service.

    Examples:
      roost uncordon node-1

    It ends a cordon or a drain, and clears the flaky mark.

    Next: `roost nodes show NODE`.
    """
    node = client.nodes.uncordon(name)
    return Output(node, f"node {node.name} is {node.status}")
