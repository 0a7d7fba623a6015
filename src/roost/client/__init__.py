"""The typed Python client.

from roost.client import Client, find_config

with Client(*find_config()) as client:
    done = client.run_to_end({"name": "hello", "command": "echo hello"})
    print(done.state, client.log("default", "hello", 0))
"""

from roost.client.client import Client
from roost.client.config import Config, find_config
from roost.client.errors import ApiError, ClientError, NotConfigured, Unreachable, WaitTimedOut

__all__ = [
    "ApiError",
    "Client",
    "ClientError",
    "Config",
    "NotConfigured",
    "Unreachable",
    "WaitTimedOut",
    "find_config",
]
