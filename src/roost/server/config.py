"""What an operator can choose about a server, checked before anything is opened."""

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from roost.blobs.factory import check_blobs
from roost.blobs.garbage import GRACE_MS
from roost.core.placement.strategies import DEFAULT, check_strategy
from roost.core.state.records import Settings
from roost.model.errors import Invalid
from roost.model.limits import DURATION_MS_MAX
from roost.model.records.webhook import COMMANDS_MAX, Command, read_command
from roost.model.spec.names import check_node_name, check_text
from roost.server.auth.oidc import check_private_url
from roost.server.auth.tokens import PREFIX
from roost.server.cluster.election import LeaderTiming, check_timing
from roost.server.engine.recording import FILE_BYTES_MAX, FILE_BYTES_MIN, TOTAL_BYTES_MAX
from roost.server.history.service import BYTES_MAX, BYTES_MIN, RETENTION_MS
from roost.server.logs.machine import LOG_BYTES_MAX
from roost.server.observability.logging import LEVELS, Form
from roost.server.webhooks.destinations import PUBLIC, Destinations
from roost.stores.factory import read_place

Tls = Literal["auto", "on", "off"]
HistoryKept = Literal["auto", "on", "off"]

SHARED = ("postgresql://", "postgres://", "etcd://")  # stores that several servers can use at once

API_PORT = 8420
AGENTS_PORT = 8421

# An agent speaks four times per lease and a server decides within a tenth of it, so one lost word, one slow step and
# the margin together still fit. Below a second the pauses of an ordinary machine (swapping, a suspended VM) cost work.
LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 600_000  # ten minutes: longer, and a machine that is gone is noticed too late
MARGIN_SHARE = 10  # a tenth of a lease for a keeper to have killed what its lease no longer covers
MARGIN_MS_MIN = 200

PREEMPT_MARGIN_MAX = 100  # as far as two priorities can be from each other

CERTIFICATE_MS = 30 * 86_400_000  # survives a month out of touch; a stolen one ends by itself
CERTIFICATE_MS_MIN, CERTIFICATE_MS_MAX = 60_000, 366 * 86_400_000
ADVERTISE_MAX = 16
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")

TOKEN_LENGTH_MIN = 16  # shorter ones can be guessed over the network
SEED_MAX = (1 << 63) - 1
AUTHORITY_FILE = "authority.sealed"  # of a server whose store forgets: the CA, its key sealed
PORT_MAX = 65_535
LOG_LIMIT_MIN, LOG_LIMIT_MAX = 1 << 10, 1 << 40  # a screen; more than any disk of a server has room for

BOUNDS = (
    ("lease_ms", LEASE_MS_MIN, LEASE_MS_MAX),
    ("seed", 0, SEED_MAX),
    ("backfill_after_ms", 0, DURATION_MS_MAX),
    ("preempt_margin", 0, PREEMPT_MARGIN_MAX),
    ("certificate_ms", CERTIFICATE_MS_MIN, CERTIFICATE_MS_MAX),
    ("history_retention_ms", 1, DURATION_MS_MAX),
    ("history_max", BYTES_MIN, 1 << 62),
    ("blobs_grace_ms", 1, DURATION_MS_MAX),
    ("log_limit", LOG_LIMIT_MIN, LOG_LIMIT_MAX),
    ("port", 0, PORT_MAX),
    ("agents_port", 0, PORT_MAX),
)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A server's settings. Tokens are left out when it is printed."""

    data: Path
    store: str = field(default="sqlite", repr=False)  # sqlite, memory, or the URL of one that servers share
    name: str = ""  # among the servers that share a store; "": the host's
    leader_ttl_ms: int = LeaderTiming().ttl_ms
    leader_renew_ms: int = LeaderTiming().renew_ms
    leader_retry_ms: int = LeaderTiming().retry_ms
    store_outage_grace_ms: int = LeaderTiming().store_outage_grace_ms  # agents are answered while the store is away
    blobs: str = ""  # a directory, or s3://BUCKET/PREFIX; "": a directory of this server's own
    blobs_grace_ms: int = GRACE_MS  # files that nothing names are deleted when they are so old
    log_limit: int = LOG_BYTES_MAX  # bytes of one attempt's log; the rest is not kept
    host: str = "127.0.0.1"
    port: int = API_PORT  # 0: any free one
    agents_host: str = "127.0.0.1"
    agents_port: int = AGENTS_PORT
    controllers: bool = True  # whether outside controllers are listened to, over gRPC
    controller_listen: tuple[str, int] | None = None  # None: as the API, its port + 2, or any if that is in use
    admin_token: str = field(repr=False)  # of the first user of the API
    advertise: tuple[str, ...] = ()  # names and addresses by which others reach this server; (): as it listens
    tls: Tls = "auto"  # of the API and the controllers' port; auto: of each unless only this machine can reach it
    tls_cert: Path | None = None  # for the API, instead of a certificate of our own CA
    tls_key: Path | None = None
    key_files: tuple[Path, ...] = ()  # for what is sealed at rest; the first is the newest
    key_command: str = field(default="", repr=False)
    new_authority: bool = False  # put a new CA into the place of the old one: all nodes join again
    certificate_ms: int = CERTIFICATE_MS  # how long certificates of servers and nodes are good
    oidc_issuer: str = ""  # who vouches for persons; "": there are only tokens
    oidc_client_id: str = ""  # as which the issuer knows this server
    oidc_claim: str = "email"  # what of an identity is the subject that members are known by
    strategy: str = DEFAULT
    lease_ms: int = 4_000
    seed: int = 0
    backfill_after_ms: int = 30_000  # an instance pending for longer gets a backfill reservation; 0: at once
    preempt_margin: int = 20  # by how much a priority must be higher to stop what runs; 0: it never does
    record_decisions: Path | None = None  # where history is written; None: nowhere
    record_max: int = FILE_BYTES_MAX
    record_total: int = TOTAL_BYTES_MAX
    history: HistoryKept = "auto"  # auto: unless nothing else is kept either
    history_retention_ms: int = RETENTION_MS
    history_max: int = BYTES_MAX
    hooks: tuple[str, ...] = field(default=(), repr=False)  # commands of this host: NAME[:EVENT,...]=COMMAND
    webhook_allow: tuple[str, ...] = (PUBLIC,)  # networks that webhooks may reach
    log_level: str = "info"
    log_format: Form = "auto"

    @property
    def is_shared(self) -> bool:
        return self.store.startswith(SHARED)

    @property
    def server_name(self) -> str:
        return self.name or socket.gethostname()

    @property
    def loses_files(self) -> bool:
        """Whether another server that takes the lead lacks the files of workloads."""
        return self.is_shared and not self.blobs

    def timing(self) -> LeaderTiming:
        return LeaderTiming(self.leader_ttl_ms, self.leader_renew_ms, self.leader_retry_ms, self.store_outage_grace_ms)

    @property
    def controller_host(self) -> str:
        return self.controller_listen[0] if self.controller_listen is not None else self.host

    def encrypts(self, host: str) -> bool:
        """Whether the API or the controllers' port has TLS where it listens on this address. The agents' always has."""
        if self.tls == "auto":
            return self.tls_cert is not None or not is_loopback(host)
        return self.tls == "on"

    @property
    def keeps_history(self) -> bool:
        return self.history == "on" or (self.history == "auto" and self.store != "memory")

    def hook_commands(self) -> tuple[Command, ...]:
        return tuple(read_command(hook, "hooks") for hook in self.hooks)

    def settings(self) -> Settings:
        margin = max(MARGIN_MS_MIN, self.lease_ms // MARGIN_SHARE)
        return Settings(
            server=self.server_name if self.is_shared else "",
            strategy=self.strategy,
            lease_ms=self.lease_ms,
            lease_margin_ms=margin,
            seed=self.seed,
            backfill_after_ms=self.backfill_after_ms,
            preempt_margin=self.preempt_margin,
            grace_ms=self.timing().grace_ms if self.is_shared else 0,
            # Else the holder of a node's certificate could make up work of any project, and read its secrets.
            adopts=self.store == "memory",
            awaits_agents=self.store == "memory" and not self.new_authority and (self.data / AUTHORITY_FILE).exists(),
        )


def check_config(config: ServerConfig) -> None:
    """Refuse settings that cannot work, with their name. Raises Invalid."""
    if not config.strategy:
        raise Invalid("strategy", f"a strategy has a name; the default is {DEFAULT}", code="invalid_strategy")
    check_strategy(config.strategy, "strategy")
    _check_store(config)
    if config.blobs:
        check_blobs(config.blobs)
    if config.log_level not in LEVELS:
        raise Invalid("log_level", f"a level is {', '.join(LEVELS)}, not {config.log_level!r:.60}")
    for name, least, most in BOUNDS:
        value = getattr(config, name)
        if not least <= value <= most:
            raise Invalid(name, f"this is {least:,} to {most:,}, not {value:,}")
    if not FILE_BYTES_MIN <= config.record_max <= config.record_total:
        message = f"a file of history has at least {FILE_BYTES_MIN:,} bytes, and at most as many as all together"
        raise Invalid("record_max", f"{message}; not {config.record_max:,} of {config.record_total:,}")
    if config.history not in ("auto", "on", "off"):
        raise Invalid("history", f"history is auto, on or off, not {config.history!r:.60}")
    if config.controller_listen is not None and not 0 <= config.controller_listen[1] <= PORT_MAX:
        raise Invalid("controller_listen", f"a port is 0 to {PORT_MAX}, not {config.controller_listen[1]}")
    if config.port and config.port == config.agents_port and config.host == config.agents_host:
        raise Invalid("agents_port", f"port {config.port} is the API's; agents need one of their own")
    _check_oidc(config)
    _check_certificates(config)
    _check_hooks(config)
    if len(config.admin_token) < TOKEN_LENGTH_MIN:
        raise Invalid("admin_token", f"a token has at least {TOKEN_LENGTH_MIN} characters")
    if config.admin_token.startswith(PREFIX):
        raise Invalid("admin_token", f"a root token does not begin with {PREFIX}, as API tokens do")
    if not re.fullmatch("[!-~]*", config.admin_token):
        raise Invalid("admin_token", "a token is made of printable ASCII characters without spaces")


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings of the environment; options of the command line go before them."""
    names = {"SCHEDULING_STRATEGY": "strategy", "ROOST_TOKEN": "admin_token"}
    return {setting: environment[name] for name, setting in names.items() if environment.get(name)}


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_certificates(config: ServerConfig) -> None:
    if config.tls not in ("auto", "on", "off"):
        raise Invalid("tls", f"TLS is auto, on or off, not {config.tls!r:.60}")
    if (config.tls_cert is None) != (config.tls_key is None):
        raise Invalid("tls_cert", "a certificate and its key come together: --tls-cert and --tls-key")
    if config.tls_cert is not None and config.tls == "off":
        raise Invalid("tls_cert", "a certificate is of no use with --tls off")
    if len(config.advertise) > ADVERTISE_MAX:
        raise Invalid("advertise", f"a server has at most {ADVERTISE_MAX} names")
    for host in config.advertise:
        if not HOST.fullmatch(host):
            raise Invalid("advertise", f"this is a host name or an address without a port, not {host!r:.80}")


def _check_store(config: ServerConfig) -> None:
    if not config.is_shared:
        if config.store not in ("sqlite", "memory"):
            message = "a store is sqlite, memory, postgresql://USER@HOST/DATABASE or etcd://HOST:2379,HOST:2379/PREFIX"
            scheme = config.store.partition(":")[0]  # the rest may hold a password
            raise Invalid("store", f"{message}, not {scheme!r:.40}")
        return
    read_place(config.store)
    if not config.agents_port:
        raise Invalid("agents_port", "servers that share a store have to find each other: choose a port")
    if config.name:
        check_node_name(config.name, "name")
    check_timing(config.timing(), config.lease_ms)


def _check_oidc(config: ServerConfig) -> None:
    if not config.oidc_issuer:
        if config.oidc_client_id:
            raise Invalid("oidc_client_id", "a client id is of use only with an issuer: set oidc_issuer too")
        return
    check_private_url(config.oidc_issuer, "oidc_issuer")
    if "?" in config.oidc_issuer:
        raise Invalid("oidc_issuer", "an issuer's URL has no query")
    for name, text in (("oidc_client_id", config.oidc_client_id), ("oidc_claim", config.oidc_claim)):
        if not text:
            raise Invalid(name, "this is needed with an issuer")
        check_text(text, name)


def _check_hooks(config: ServerConfig) -> None:
    if len(config.hooks) > COMMANDS_MAX:
        raise Invalid("hooks", f"a server has at most {COMMANDS_MAX} command hooks, not {len(config.hooks)}")
    names = [command.name for command in config.hook_commands()]
    for name in names:
        if names.count(name) > 1:
            raise Invalid("hooks", f"there are two command hooks {name}")
    Destinations(config.webhook_allow)
