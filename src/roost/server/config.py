"""What an operator can choose about a server, checked before anything is opened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from roost.core.state import Settings
from roost.core.strategies import DEFAULT, check_strategy
from roost.model.errors import Invalid
from roost.model.limits import DURATION_MS_MAX
from roost.server.journal import FILE_BYTES_MAX, FILE_BYTES_MIN, TOTAL_BYTES_MAX
from roost.server.say import LEVELS, Form

StoreKind = Literal["sqlite", "memory"]

API_PORT = 8420
AGENTS_PORT = 8421

# An agent speaks four times per lease and a server decides within a tenth of it, so one lost word, one slow step and
# the margin together still fit. Below a second the pauses of an ordinary machine (swapping, a suspended VM) cost work.
LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 600_000  # ten minutes: longer, and nobody notices that a machine is gone
BEATS_PER_LEASE = 4
MARGIN_SHARE = 10  # a tenth of a lease for a keeper to have killed what its lease no longer covers
MARGIN_MS_MIN = 200

PREEMPT_MARGIN_MAX = 100  # as far as two priorities can be from each other

TOKEN_LENGTH_MIN = 8  # shorter ones can be guessed over the network
SEED_MAX = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A server's settings. Tokens are left out when it is printed."""

    data: Path
    store: StoreKind = "sqlite"
    host: str = "127.0.0.1"
    port: int = API_PORT  # 0: any free one
    agents_host: str = "127.0.0.1"
    agents_port: int = AGENTS_PORT
    admin_token: str = field(repr=False)  # of whoever uses the API
    agent_token: str = field(repr=False)
    strategy: str = DEFAULT
    lease_ms: int = 4_000
    seed: int = 0
    patience_ms: int = 30_000  # who waits longer gets a place kept for it; 0: at once
    preempt_margin: int = 20  # by how much a priority must be higher to stop what runs; 0: it never does
    record: Path | None = None  # where history is written; None: nowhere
    record_max: int = FILE_BYTES_MAX
    record_total: int = TOTAL_BYTES_MAX
    log_level: str = "info"
    log_form: Form = "auto"

    def settings(self) -> Settings:
        """What of this the core reads."""
        margin = max(MARGIN_MS_MIN, self.lease_ms // MARGIN_SHARE)
        return Settings(
            strategy=self.strategy,
            lease_ms=self.lease_ms,
            lease_margin_ms=margin,
            seed=self.seed,
            patience_ms=self.patience_ms,
            preempt_margin=self.preempt_margin,
        )


def check_config(config: ServerConfig) -> None:
    """Refuse what cannot work, with the name of the setting and a sentence."""
    if not config.strategy:
        raise Invalid("strategy", f"a strategy has a name; the default is {DEFAULT}", code="invalid_strategy")
    check_strategy(config.strategy, "strategy")
    if config.store not in ("sqlite", "memory"):
        raise Invalid("store", f"a store is sqlite or memory, not {config.store!r:.60}")
    if config.log_level not in LEVELS:
        raise Invalid("log_level", f"a level is {', '.join(LEVELS)}, not {config.log_level!r:.60}")
    if not LEASE_MS_MIN <= config.lease_ms <= LEASE_MS_MAX:
        words = f"a lease is {LEASE_MS_MIN:,} to {LEASE_MS_MAX:,} ms, so that {BEATS_PER_LEASE} beats fit into it"
        raise Invalid("lease_ms", f"{words}; not {config.lease_ms:,}")
    if not 0 <= config.seed <= SEED_MAX:
        raise Invalid("seed", f"a seed is 0 to {SEED_MAX}, not {config.seed}")
    if not 0 <= config.patience_ms <= DURATION_MS_MAX:
        raise Invalid("patience_ms", f"patience is 0 to {DURATION_MS_MAX:,} ms, not {config.patience_ms:,}")
    if not 0 <= config.preempt_margin <= PREEMPT_MARGIN_MAX:
        words = f"a margin is 0 (nothing is stopped for a priority) to {PREEMPT_MARGIN_MAX}"
        raise Invalid("preempt_margin", f"{words}, not {config.preempt_margin:,}")
    if not FILE_BYTES_MIN <= config.record_max <= config.record_total:
        words = f"a file of history has at least {FILE_BYTES_MIN:,} bytes, and at most as many as all together"
        raise Invalid("record_max", f"{words}; not {config.record_max:,} of {config.record_total:,}")
    for name, port in (("port", config.port), ("agents_port", config.agents_port)):
        if not 0 <= port <= 65_535:
            raise Invalid(name, f"a port is 0 to 65535, not {port}")
    if config.port and config.port == config.agents_port and config.host == config.agents_host:
        raise Invalid("agents_port", f"port {config.port} is the API's; agents need one of their own")
    for name, token in (("admin_token", config.admin_token), ("agent_token", config.agent_token)):
        _check_token(name, token)


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings that the environment gives; a flag of the command line goes before them."""
    names = {"SCHEDULING_STRATEGY": "strategy", "ROOST_TOKEN": "admin_token", "ROOST_AGENT_TOKEN": "agent_token"}
    return {setting: environment[name] for name, setting in names.items() if environment.get(name)}


def _check_token(name: str, token: str) -> None:
    if len(token) < TOKEN_LENGTH_MIN:
        raise Invalid(name, f"a token has at least {TOKEN_LENGTH_MIN} characters")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid(name, "a token is made of printable ASCII characters without spaces")
