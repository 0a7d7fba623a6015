"""Where services are: the addresses of their instances, for whoever asks and for those who waited for them."""

import re

import msgspec

from roost.core.state import State
from roost.model.workload import Workload

ADDRESSES_MAX = 100  # of one service: a client needs a few, and a variable has to fit into an environment
VARIABLES_MAX = 64  # of one run, for all services that it waited for
_NOT_IN_NAMES = re.compile("[^A-Z0-9]")


class Address(msgspec.Struct, frozen=True):
    """Where an instance listens: its node's address, and its ports by name."""

    index: int
    node: str
    host: str
    ports: dict[str, int]
    ready: bool


def addresses_of(state: State, workload: Workload) -> list[Address]:
    """Where the running instances of a workload are, by index; at most ADDRESSES_MAX of them."""
    found: list[Address] = []
    for index in range(state.begun(workload)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is None or instance.state != "running" or instance.node not in state.nodes:
            continue
        names = state.spec_of(instance).policy.ports
        ports = dict(zip(names, instance.ports, strict=False))
        host = state.nodes[instance.node].facts.address or instance.node
        found.append(Address(index, instance.node, host, ports, instance.serving_ms > 0))
        if len(found) == ADDRESSES_MAX:
            break
    return found


def address_variables(state: State, workload: Workload) -> tuple[tuple[str, str], ...]:
    """What a run is told of the services that it waited for: ROOST_DB_SQL is `host:port,host:port` of those ready."""
    found: dict[str, str] = {}
    for each in workload.policy.after:
        other = state.workloads.get(each.workload)
        if other is None or other.policy.kind == "job" or not other.policy.ports:
            continue
        ready = [address for address in addresses_of(state, other) if address.ready]
        for port in other.policy.ports:
            told = [_joined(address.host, address.ports[port]) for address in ready if port in address.ports]
            found.setdefault(variable_name(other.name, port), ",".join(told))
    return tuple(found.items())[:VARIABLES_MAX]


def variable_name(name: str, port: str) -> str:
    """ROOST_<NAME>_<PORT>: what is neither a letter nor a digit becomes a line below."""
    return f"ROOST_{_NOT_IN_NAMES.sub('_', name.upper())}_{_NOT_IN_NAMES.sub('_', port.upper())}"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
