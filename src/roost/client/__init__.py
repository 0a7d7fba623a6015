"""The typed Python client.

from roost.client import Client, find_config

with Client(*find_config()) as client:
    done = client.workloads.run_to_end({"name": "hello", "command": "echo hello"})
    print(done.state, client.logs.read("default", "hello"))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roost.client.errors import (
    ApiError,
    CannotSend,
    CannotWrite,
    ClientError,
    NotConfigured,
    Unreachable,
    WaitTimedOut,
)

if TYPE_CHECKING:
    from roost.client.client import Client
    from roost.client.config import Config, find_config

__all__ = [
    "ApiError",
    "CannotSend",
    "CannotWrite",
    "Client",
    "ClientError",
    "Config",
    "NotConfigured",
    "Unreachable",
    "WaitTimedOut",
    "find_config",
]

_LATER = {"Client": "client", "Config": "config", "find_config": "config"}


def __getattr__(name: str) -> Any:
    """HTTP and JSON are imported when a client is made, so that importing an error is fast."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
