"""roost services: addresses of services."""

import os
from collections.abc import Sequence

import click

from roost.cli.common.exit_codes import DONE, FAILED
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output
from roost.cli.common.targets import TARGET, Target, in_project
from roost.client import Client
from roost.model.limits import DEFAULT_PROJECT
from roost.schema.services import AddressView, ServiceView

HEADER = ("SERVICE", "READY", "VERSION", "ADDRESSES")
HEADER_OF_ONE = ("INSTANCE", "NODE", "HOST", "PORTS", "READY", "VERSION")
ADDRESSES_SHOWN = 3  # addresses of a service in a list of many


@click.command()
@click.argument("target", type=TARGET, required=False, metavar="[NAME]")
@click.option("-p", "--project", default="", help="Only of this project; with a NAME, its project.")
@click.option("--ready", "only_ready", is_flag=True, help="Only ready replicas.")
@click.option("--plain", is_flag=True, help="Only host:port of ready replicas, one per line.")
@click.option("--port", default="", metavar="PORT", help="With --plain: this port. [default: the first]")
@client_output
def services(client: Client, target: Target | None, project: str, only_ready: bool, plain: bool, port: str) -> Output:
    """List services: the addresses of their replicas, and which are ready.

    Examples:
      roost services                          all services, with their first ready addresses
      roost services web                      every running replica
      roost services web --plain              host:port of ready replicas, one per line
      curl http://$(roost services web --plain --port http | head -1)/

    Exit code with --plain: 1 if none is ready.
    Next: `roost show NAME` for its status, `roost why NAME.INDEX` why a replica is not ready.
    """
    if port and not plain:
        raise click.UsageError("--port chooses what --plain prints; give both")
    if target is None:
        found = client.services.list(project=project, ready=only_ready or plain)
        empty = "there is no service; `roost apply -f FILE` starts one of `kind: service`"
        return _plain(found, found, port) if plain else listed(found, HEADER, _row, empty)
    target = in_project(target, project or os.environ.get("ROOST_PROJECT") or DEFAULT_PROJECT)
    service = client.services.get(target.project, target.name, ready=only_ready or plain)
    if plain:
        return _plain(service, [service], port)
    empty = f"none of its replicas {'is ready' if only_ready else 'runs'}; `roost why {target}` shows why"
    return listed(
        service.addresses, HEADER_OF_ONE, lambda address: _address_row(service, address), empty, value=service
    )


def _plain(value: object, found: Sequence[ServiceView], port: str) -> Output:
    lines = [f"{line}\n" for service in found for line in _lines(service, port)]
    return Output(value, lambda: click.echo("".join(lines), nl=False), DONE if lines else FAILED)


def _row(service: ServiceView) -> tuple[str, ...]:
    ready = [address for address in service.addresses if address.ready]
    first = service.ports[0] if service.ports else ""
    answer = [address.at(first) if first in address.ports else address.host for address in ready[:ADDRESSES_SHOWN]]
    more = f" and {len(ready) - ADDRESSES_SHOWN} more" if len(ready) > ADDRESSES_SHOWN else ""
    name = str(Target(service.project, service.name))
    return name, f"{service.ready}/{service.count}", str(service.version), (", ".join(answer) + more) or "-"


def _address_row(service: ServiceView, address: AddressView) -> tuple[str, ...]:
    name = str(Target(service.project, service.name, address.index))
    ports = ", ".join(f"{port} {number}" for port, number in address.ports.items()) or "-"
    return name, address.node, address.host, ports, "yes" if address.ready else "no", str(address.version)


def _lines(service: ServiceView, port: str) -> list[str]:
    wanted = port or (service.ports[0] if service.ports else "")
    return [address.at(wanted) for address in service.addresses if address.ready and wanted in address.ports]
