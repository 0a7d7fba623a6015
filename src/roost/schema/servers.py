"""Servers, leadership and the status of the whole."""

import msgspec

from roost.model.states import InstanceState, NodeStatus, WorkloadState
from roost.schema.nodes import MaintenanceView


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `revision` is how far it has come; `now_ms` what its clock shows."""

    name: str
    role: str  # leader | standby | unknown
    api: str
    agents: str
    revision: int
    now_ms: int
    version: str
    failed: str = ""  # what is wrong with it


class TimingView(msgspec.Struct, frozen=True, kw_only=True):
    """How fast leadership changes hands."""

    ttl_ms: int
    renew_ms: int
    retry_ms: int
    store_outage_grace_ms: int


class ServersView(msgspec.Struct, frozen=True, kw_only=True):
    """All servers, the leader first. Alone on a store of its own, a server has no timing."""

    epoch: int
    items: list[ServerView]
    timing: TimingView | None = None


class LeaderView(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads."""

    leads: bool  # whether it is the server that was asked
    name: str = ""
    api: str = ""


class RevokedView(msgspec.Struct, frozen=True, kw_only=True):
    """The certificates of servers that are valid: those of this series. All earlier ones are revoked."""

    series: int


class LeaderTransfer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server that is to lead; none named: the first standby."""

    to: str = ""


class HistoryStatus(msgspec.Struct, frozen=True):
    """How the history stands: the newest written commit, the backlog, and why nothing is written if so."""

    revision: int
    at_ms: int
    waiting: int = 0  # changes that are not written yet
    bytes: int = 0
    gaps: int = 0  # since the server was started
    failed: str = ""
    place: str = ""  # where servers share it; "": this server has its own
    is_behind: bool = False  # of the commits that this server knows
    is_apart: bool = False  # servers share the store, and each has a history of its own


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """How the server stands."""

    version: str
    revision: int
    ready: bool
    now_ms: int
    strategy: str
    strategies: list[str] = []
    lease_ms: int
    backfill_after_ms: int = 30_000
    preempt_margin: int = 20
    agents_connected: int
    nodes: dict[NodeStatus, int]
    workloads: dict[WorkloadState, int]
    instances: dict[InstanceState, int]
    maintenance: MaintenanceView = MaintenanceView(on=False)
    history: HistoryStatus | None = None  # None: none is kept
    task_restarts: dict[str, int] = {}  # background tasks of this server that had to be restarted, and how often
    controllers: list[str] = []  # where controllers connect over gRPC, HOST:PORT of each server
    controllers_tls: bool = False  # whether over TLS


class Alive(msgspec.Struct, frozen=True):
    """It is."""

    alive: bool = True


class Ready(msgspec.Struct, frozen=True):
    """It is."""

    ready: bool = True
