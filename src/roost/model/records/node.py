"""A node: a machine with a Roost agent, as it described itself and as it stands now."""

import msgspec

from roost.model.limits import DEFAULT_POOL, PORT_ANY_FIRST, PORT_ANY_LAST
from roost.model.records.transition import NodeStory
from roost.model.states import IsolationLevel, NodeStatus

FLAKY = "flaky:soft"  # the taint of a node on which runs keep failing


# Limits on cpu, memory and the number of processes; `cleanup`: no process outlives its run, whatever it does.
ENFORCEABLE = ("cpu", "memory", "pids", "cleanup")


class Facts(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, gc=False):
    """What a host offers: cpu in milli-cores, memory and disk in bytes, gpu in thousandths, other resources counted."""

    resources: dict[str, int]
    labels: dict[str, str] = {}
    zone: str = ""
    rack: str = ""
    region: str = ""
    pool: str = DEFAULT_POOL
    arch: str = ""
    drivers: tuple[str, ...] = ("process",)
    gpu_model: str = ""  # of all its devices
    taints: tuple[str, ...] = ()  # KEY or KEY=VALUE: only who tolerates it comes here; with :soft, rather not
    address: str = ""  # where others reach what listens on it: a host name or an IP address
    port_first: int = PORT_ANY_FIRST  # the ports to give out where any will do: no other node of the machine has them
    port_last: int = PORT_ANY_LAST
    user: str = ""  # whose user the runs have
    enforces: tuple[str, ...] = ENFORCEABLE  # what its keeper can do here
    volumes: tuple[str, ...] = ()  # NAME or NAME:rw: directories that its operator gives to containers
    vm: tuple[str, ...] = ()  # KIND/NAME: images, bridges, firmware and accelerators that it has for virtual machines
    isolation: IsolationLevel = IsolationLevel.NONE  # of processes: the best that it offers
    users: bool = False  # each project has a user of its own there, and a run may have another


class Node(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A node as stored. `identity` (MACHINE/LIFE) tells two machines of one name apart, and two lives of one machine:
    what an earlier keeper of it ran is gone. `session` tells two connections apart."""

    name: str
    identity: str
    facts: Facts
    status: NodeStatus = NodeStatus.READY
    draining: bool = False  # wanted by an operator; survives suspicion and loss
    drain_until_ms: int = 0  # then everything that is left moves; 0: without a deadline
    drain_stops_jobs: bool = False  # at once; otherwise they may finish, until the deadline if there is one
    cordoned: bool = False  # by an operator: what runs there stays, nothing new comes
    flaky_until_ms: int = 0  # runs failed here that did not elsewhere: until then others are preferred
    session: int = 0
    hello_ms: int = 0  # when it registered in this session, on its own clock
    joined_ms: int = 0
    story: NodeStory = ()
