"""roost services: where services are."""

from typing import TYPE_CHECKING

import click

from roost.cli.outcome import FAILED
from roost.cli.output import print_json, print_table, say
from roost.cli.session import connect, json_option
from roost.cli.targets import TARGET, Target, in_project, usual_project

if TYPE_CHECKING:
    from roost.client.services import Address, Service

HEADER = ("SERVICE", "READY", "VERSION", "ADDRESSES")
HEADER_OF_ONE = ("INSTANCE", "NODE", "HOST", "PORTS", "READY", "VERSION")
TOLD_MAX = 3  # addresses of a service in a list of many


@click.command(
    epilog="""\b
Examples:
  roost services                          all of them, with their first addresses that are ready
  roost services web                      every replica that runs, ready or not
  roost services web --plain              host:port of those that are ready, one on each line
  curl http://$(roost services web --plain --port http | head -1)/
\b
Exit code with --plain: 1 if none is ready.
Next: `roost show NAME` shows how a service stands, `roost why NAME.INDEX` why a replica is not ready.
"""
)
@click.argument("target", type=TARGET, required=False, metavar="[NAME]")
@click.option("-p", "--project", default="", help="Only of this project; with a NAME, its project.")
@click.option("--ready", "only_ready", is_flag=True, help="Only replicas that are ready to be used.")
@click.option("--plain", is_flag=True, help="Only host:port of those that are ready, one on each line.")
@click.option("--port", default="", metavar="PORT", help="With --plain: this port of theirs. [default: the first]")
@json_option
@click.pass_context
def services(
    ctx: click.Context, target: Target | None, project: str, only_ready: bool, plain: bool, port: str, as_json: bool
) -> None:  # fmt: skip
    """Say where services are: the addresses of their replicas, and which of these are ready."""
    if port and not plain:
        raise click.UsageError("--port chooses what --plain prints; give both")
    with connect() as client:
        if target is None:
            found = client.services(project=project, ready=only_ready or plain)
        else:
            target = in_project(target, usual_project(project))
            found = [client.service(target.project, target.name, ready=only_ready or plain)]
    if as_json:
        print_json(found if target is None else found[0])
    elif plain:
        lines = [line for each in found for line in _lines(each, port)]
        click.echo("".join(f"{line}\n" for line in lines), nl=False)
        ctx.exit(0 if lines else FAILED)
    elif target is None:
        print_table(HEADER, [_row(each) for each in found])
        if not found:
            say("there is no service; `roost apply -f FILE` starts one of `kind: service`")
    else:
        print_table(HEADER_OF_ONE, [_address_row(found[0], each) for each in found[0].addresses])
        if not found[0].addresses:
            say(f"none of its replicas {'is ready' if only_ready else 'runs'}; `roost why {target}` says why")


def _row(service: "Service") -> tuple[str, ...]:
    ready = [each for each in service.addresses if each.ready]
    first = service.ports[0] if service.ports else ""
    told = [each.at(first) if first in each.ports else each.host for each in ready[:TOLD_MAX]]
    more = f" and {len(ready) - TOLD_MAX} more" if len(ready) > TOLD_MAX else ""
    name = str(Target(service.project, service.name))
    return name, f"{service.ready}/{service.count}", str(service.version), (", ".join(told) + more) or "-"


def _address_row(service: "Service", address: "Address") -> tuple[str, ...]:
    name = str(Target(service.project, service.name, address.index))
    ports = ", ".join(f"{port} {number}" for port, number in address.ports.items()) or "-"
    return name, address.node, address.host, ports, "yes" if address.ready else "no", str(address.version)


def _lines(service: "Service", port: str) -> list[str]:
    wanted = port or (service.ports[0] if service.ports else "")
    return [each.at(wanted) for each in service.addresses if each.ready and wanted in each.ports]
