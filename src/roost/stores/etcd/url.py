"""Where an etcd store is, as one line: etcd://user:password@host1:2379,host2:2379/prefix?ca=...&cert=...&key=..."""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

PORT = 2379
OPERATIONS_MAX = 1_000_000  # beyond every etcd
WRONG = "the store's URL is not etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/PREFIX"
ESCAPES = "write a / ? # or @ in the password as %2F %3F %23 %40"
SWITCH = {"true": True, "false": False}


class Tls(NamedTuple):
    """Files in PEM. No `ca`: the authorities that the machine trusts. `certificate` and `key`: our own."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


class EtcdPlace(NamedTuple):
    """A prefix in an etcd cluster. Its text never has the password.

    `compact`: the leader drops etcd's history of more than some minutes ago. That is done for the whole etcd, not for
    the prefix; but an etcd whose history is never dropped runs full and stops for all users. So it is on, unless etcd
    does it itself (--auto-compaction-retention) or other users of the same etcd need more history than that.
    """

    endpoints: tuple[str, ...]
    prefix: str = "/roost"
    tls: Tls | None = None
    user: str = ""
    password: str = ""
    compact: bool = True
    operations: int = 128  # etcd's default for --max-txn-ops

    def __repr__(self) -> str:
        return f"etcd {','.join(self.endpoints)}{self.prefix}"


def parse_etcd_url(url: str) -> EtcdPlace:
    """Raises ValueError that names the part which is wrong, and never has a part of the password."""
    try:
        scheme, place, path, query, fragment = urlsplit(url)
    except ValueError:
        raise ValueError(WRONG) from None  # its message would show parts of the URL
    if scheme != "etcd":
        raise ValueError(f"etcd: the URL begins with {scheme or 'nothing'}://, not with etcd://")
    login, _, hosts = place.rpartition("@")
    # "p/w" or "p@w" unescaped would make a part of the password a host name, and hosts are shown.
    if "@" in login + path + query or fragment:
        raise ValueError(f"{WRONG}: {ESCAPES}")
    user, _, password = login.partition(":")
    options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    unknown = options.keys() - {"ca", "cert", "key", "tls", "compact", "operations"}
    if unknown:
        raise ValueError(f"etcd: {sorted(unknown)[0]} is not known; ca, cert, key, tls, compact, operations are")
    return EtcdPlace(
        tuple(_endpoint(host, is_shown=bool(login)) for host in hosts.split(",")),
        unquote(path).rstrip("/") or "/roost",
        _tls(options),
        unquote(user),
        unquote(password),
        _switch(options, "compact", True),
        _operations(options.get("operations", "128")),
    )


def _endpoint(host: str, is_shown: bool) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):  # no port, or an IPv6 address in brackets without one
        name, port = host, str(PORT)
    if not name or not port.isdigit() or not 0 < int(port) < 65536:
        # Without a login, what is no host may be half of one: "etcd://user:password".
        if host and not is_shown:
            raise ValueError(f"{WRONG}: {ESCAPES}")
        raise ValueError(f"etcd: {host or 'an empty host'} is no host:port of an etcd member")
    return f"{name}:{port}"


def _tls(options: dict[str, str]) -> Tls | None:
    ca, cert, key = (Path(options[name]) if options.get(name) else None for name in ("ca", "cert", "key"))
    if (cert is None) != (key is None):
        raise ValueError("etcd: cert and key go together; give both or none")
    if _switch(options, "tls", ca is not None or cert is not None):
        return Tls(ca, cert, key)
    if ca is not None or cert is not None:
        raise ValueError("etcd: tls=false, and yet ca or cert is given")
    return None


def _switch(options: dict[str, str], name: str, default: bool) -> bool:
    if name not in options:
        return default
    if options[name] not in SWITCH:
        raise ValueError(f"etcd: {name}={options[name]} is neither true nor false")
    return SWITCH[options[name]]


def _operations(value: str) -> int:
    if not value.isdigit() or not 2 <= int(value) <= OPERATIONS_MAX:
        raise ValueError(f"etcd: operations={value} is no number from 2 to {OPERATIONS_MAX:,}")
    return int(value)
