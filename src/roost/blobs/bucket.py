"""A bucket of S3: its address and its keys, which may be replaced while it is used."""

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

if TYPE_CHECKING:  # obstore has this name in its stubs only
    from obstore.store import S3Config as S3Settings

RETRIES_MAX = 4  # after 0.1, 0.2, 0.4 and 0.8 s: a restart of a gateway, not an outage
RETRY_S = 20.0  # a request waits at most this long before a client is answered
REQUEST_S = 60.0  # 8 MiB at 140 kB/s
REASON_CHARACTERS_MAX = 300  # bodies of errors may be long


class S3Config(msgspec.Struct, frozen=True):
    """Where the bucket is. Without keys, those of the environment or of the machine's role are used."""

    bucket: str
    prefix: str = ""  # begins the name of every object
    endpoint: str = ""  # "": Amazon's, in the region
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    retry_s: float = RETRY_S
    request_s: float = REQUEST_S


class Bucket:
    """Requests that are under way end with the keys that they began with; the next ones have the new keys."""

    def __init__(self, config: S3Config) -> None:
        self.config = config
        self.store = _open(config)

    def use(self, config: S3Config) -> None:
        if config != self.config:
            self.store = _open(config)
            self.config = config

    def check(self) -> str:
        """Why the bucket cannot be used with these keys; empty: it can. Waits for S3."""
        try:
            obstore.head(self.store, f"{self.config.prefix.strip('/')}/owner".lstrip("/"))
        except (PermissionDeniedError, UnauthenticatedError) as error:
            return denied(error)
        except FileNotFoundError:
            return ""
        except (BaseError, OSError) as error:
            return failing(error)
        return ""


def denied(error: Exception) -> str:
    return f"S3 refuses the credentials; check keys and bucket policy: {line_of(error)}"


def failing(error: Exception) -> str:
    return f"S3 fails; check its address, the bucket and its state: {line_of(error)}"


def _open(config: S3Config) -> S3Store:
    settings: S3Settings = {"region": config.region}
    if config.endpoint:
        settings["endpoint"] = config.endpoint
    if config.access_key:
        settings |= {"access_key_id": config.access_key, "secret_access_key": config.secret_key}
        settings |= {"session_token": config.session_token} if config.session_token else {}
    return S3Store(
        config.bucket,
        config=settings,
        client_options={
            "allow_http": config.endpoint.startswith("http://"),
            "timeout": timedelta(seconds=config.request_s),
            "connect_timeout": timedelta(seconds=5),
        },
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=config.retry_s)},
    )


def line_of(error: BaseException) -> str:
    return " ".join(str(error).split())[:REASON_CHARACTERS_MAX]
