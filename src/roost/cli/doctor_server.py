"""What `roost doctor` asks a server: is it there and quick, who else is, do clocks agree, is anything lost."""

import socket
import ssl
import statistics
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from roost import __version__
from roost.cli.doctor import Level, Line
from roost.client import Client, types
from roost.client.config import Config
from roost.client.errors import ApiError, ClientError, Unreachable
from roost.client.transport import CONNECT_TIMEOUT_S, Transport, tls_context
from roost.model.units import show_duration

REQUESTS = 20

# A server on the same continent answers in a few hundredths of a second; beyond a second people wait for commands.
LATENCY_WARN_MS, LATENCY_BAD_MS = 100, 1_000

# A commit is a write to a disk; 50 ms is what a slow one takes, and more is felt in every placement.
COMMIT_WARN_MS = 50

# Times are shown, certificates and logins begin and end by the clock. Leases and the lead do not depend on it.
SKEW_WARN_MS, SKEW_BAD_MS = 1_000, 60_000

# A standby is behind by what is on its way; a thousand commits are more than that.
LAG_WARN = 1_000

STANDING_BY = "another server leads"  # why a healthy standby does not decide

CERTIFICATE_SHARE = 10  # certificates are renewed long before their last tenth
NAMES_SHOWN = 5


class Server(msgspec.Struct, frozen=True):
    """One of the servers, as `GET /v1/servers` tells it; fields that are not told are not judged."""

    name: str = ""
    role: str = ""
    revision: int = 0
    now_ms: int = 0
    version: str = ""
    failed: str = ""
    api: str = ""
    ttl_ms: int = 0
    renew_ms: int = 0
    retry_ms: int = 0
    renewal_ms: float = 0.0  # how long renewals take


def look_at_server(config: Config) -> list[Line]:
    """Everything one URL of the client's configuration tells."""
    transport = Transport(config.url, config.token, config.ca)
    try:
        transport.call("GET", "/livez")
    except Unreachable as error:
        return [Line("bad", "server", str(error), error.hint)]
    except ApiError as error:
        words = f"{config.url} is no server of Roost: {error}"
        return [Line("bad", "server", words, "look at ROOST_CONFIG; is a proxy in between?")]
    lines = _certificate(config) + _latency(transport)
    try:
        lines += _standing(config, transport)
    except Unreachable as error:
        lines.append(Line("bad", "server", f"it stopped answering: {error}", "look at its log"))
    except ClientError as error:
        lines.append(Line("bad", "server", f"{config.url} refuses: {error}", error.hint or "is the token still good?"))
    finally:
        transport.close()
    return lines


def _standing(config: Config, transport: Transport) -> list[Line]:
    with Client(*config) as client:
        asked = time.time()
        status = client.status()
        middle_ms = (asked + time.time()) * 500
        lines = [_ready(config.url, status), _version("server", status.version)]
        lines += _servers(transport, middle_ms)
        lines.append(_clock("server", status.now_ms - middle_ms))
        lines += _nodes(client.nodes(), status)
        lines += _history(status) + _metrics(transport)
    return lines


def _ready(url: str, status: types.Status) -> Line:
    if not status.ready:
        words = f"{url} answers, but cannot decide"
        return Line("bad", "server", words, f"look at its log; {url}/readyz says why")
    return Line("ok", "server", f"{url} answers and decides, revision {status.revision:,}")


def _version(about: str, version: str, name: str = "the server") -> Line:
    if version == __version__:
        return Line("ok", about, f"{name} and this client are Roost {version}")
    words = f"{name} is Roost {version}, this client is {__version__}"
    return Line("warn", about, words, "upgrade the older one; servers first")


def _certificate(config: Config) -> list[Line]:
    parts = urlsplit(config.url)
    if parts.scheme != "https":
        if parts.hostname in ("127.0.0.1", "::1", "localhost"):
            return [Line("ok", "tls", "plain HTTP, on this machine only")]
        return [Line("warn", "tls", "plain HTTP: tokens can be read on the way", "docs/access.md: serve over TLS")]
    address = (parts.hostname or "", parts.port or 443)
    try:
        with socket.create_connection(address, CONNECT_TIMEOUT_S) as plain:
            with tls_context(config.ca).wrap_socket(plain, server_hostname=address[0]) as secure:
                shown: Any = secure.getpeercert()
    except OSError as error:
        return [Line("bad", "tls", f"no TLS connection: {error}", "look at `ca` in the client's configuration")]
    begins, ends = (ssl.cert_time_to_seconds(shown[name]) for name in ("notBefore", "notAfter"))
    left_s = ends - time.time()
    words = f"the certificate is good for another {show_duration(max(0, int(left_s)) * 1_000)}"
    if left_s < (ends - begins) / CERTIFICATE_SHARE:
        return [Line("warn", "tls", words, "renew it; the server's log says why that did not happen by itself")]
    return [Line("ok", "tls", words)]


def _latency(transport: Transport) -> list[Line]:
    """Of small requests over one connection."""
    took_ms = []
    try:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            transport.call("GET", "/livez")
            took_ms.append((time.perf_counter() - began) * 1_000)
    except ClientError as error:
        return [Line("bad", "latency", f"it stopped answering: {error}", "look at the server's log")]
    median = statistics.median(took_ms)
    words = f"a small request takes {median:.1f} ms (median of {REQUESTS}; the slowest {max(took_ms):.1f} ms)"
    if median < LATENCY_WARN_MS:
        return [Line("ok", "latency", words)]
    level: Level = "bad" if median >= LATENCY_BAD_MS else "warn"
    return [Line(level, "latency", words, "look at the server's load, and at the network in between")]


def _servers(transport: Transport, middle_ms: float) -> list[Line]:
    """All servers that share the store. An older one, or one with a store of its own, knows of no others."""
    try:
        answer = transport.call("GET", "/v1/servers")
    except ApiError as error:
        if error.status in (404, 405):
            return []
        return [Line("warn", "servers", f"the other servers are not told: {error}", "ask with a token that may")]
    try:
        told = msgspec.json.decode(answer.body)
        found = msgspec.convert(told["items"] if isinstance(told, dict) else told, list[Server])
    except (msgspec.MsgspecError, KeyError):
        return [Line("warn", "servers", "the server tells of others in words this client does not know", "upgrade it")]
    leaders = [server for server in found if server.role == "leader"]
    lines = []
    if len(leaders) != 1 and len(found) > 1:
        words = f"{len(leaders)} of {len(found)} servers say that they lead"
        lines.append(Line("bad", "servers", words, "look at their logs; a change of leader is over in seconds"))
    newest = max((server.revision for server in found), default=0)
    for server in found:
        lines += _server(server, newest, middle_ms)
    return lines + [line for server in leaders for line in _timing(server)]


def _server(server: Server, newest: int, middle_ms: float) -> list[Line]:
    name = server.name or "a server of no name"
    if server.failed and server.failed != STANDING_BY:
        return [Line("bad", "servers", f"{name}: {server.failed}", "start it again, or look at its log")]
    lines = []
    behind = newest - server.revision
    words = f"{name} is {server.role or 'there'}" + (f", {behind:,} commits behind" if behind else "")
    if behind > LAG_WARN:
        lines.append(Line("warn", "servers", words, "it follows too slowly: look at its load and its store"))
    else:
        lines.append(Line("ok", "servers", words))
    if server.version and server.version != __version__:
        lines.append(_version("servers", server.version, name))
    if server.now_ms and abs(server.now_ms - middle_ms) >= SKEW_WARN_MS:
        lines.append(_clock(name, server.now_ms - middle_ms))
    return lines


def _timing(leader: Server) -> list[Line]:
    if not leader.ttl_ms:
        return []
    words = f"the lead lasts {leader.ttl_ms:,} ms and is renewed every {leader.renew_ms:,} ms"
    if not leader.renewal_ms:
        return [Line("ok", "lead", words)]
    words += f"; a renewal takes {leader.renewal_ms:.1f} ms"
    # Two renewals may fail in a row; with slower ones there is no time for that.
    if leader.renew_ms + 2 * (leader.retry_ms + leader.renewal_ms) >= leader.ttl_ms:
        return [Line("warn", "lead", words, "the store is too slow for this: make it faster, or --lead-ttl longer")]
    return [Line("ok", "lead", words)]


def _clock(name: str, skew_ms: float) -> Line:
    off = abs(round(skew_ms))
    if off < SKEW_WARN_MS:
        return Line("ok", "clock", f"{name} and this machine differ by less than a second")
    words = f"the clock of {name} is {show_duration(off)} {'ahead of' if skew_ms > 0 else 'behind'} this machine's"
    return Line("bad" if off >= SKEW_BAD_MS else "warn", "clock", words, "synchronise both with NTP")


def _nodes(nodes: list[types.Node], status: types.Status) -> list[Line]:
    if not nodes:
        return [Line("warn", "nodes", "there are none: nothing can run", "`roost join-tokens create`, `roost agent`")]
    ready = [node.name for node in nodes if node.status == "ready"]
    waiting = status.instances.get("queued", 0)
    words = f"{len(ready):,} of {len(nodes):,} are ready; {waiting:,} instances wait"
    lines = [Line("ok", "nodes", words)]
    if not ready:
        lines = [Line("bad", "nodes", f"{words}: nothing can start", "`roost nodes`; look at the agents")]
    lost = [node for node in nodes if node.status == "lost"]
    if lost:
        then = "start their agents, or `roost nodes remove NAME`"
        lines.append(Line("warn", "nodes", f"lost: {_names(node.name for node in lost)}", then))
    suspect = [node.name for node in nodes if node.status == "suspect"]
    if suspect:
        then = f"wait {show_duration(status.lease_ms)}, then look at the agent and the network"
        lines.append(Line("warn", "nodes", f"out of touch just now: {_names(suspect)}", then))
    haunted = [node.name for node in lost if node.running]
    if haunted:
        then = "what is to be kept waits for its node: bring it back, or cancel the work"
        lines.append(Line("warn", "nodes", f"lost and still holding work: {_names(haunted)}", then))
    late = [node.name for node in nodes if node.drain_until_ms and 0 < node.drain_until_ms < status.now_ms]
    held = [name for name in late if next(node for node in nodes if node.name == name).running]
    if held:
        lines.append(Line("warn", "nodes", f"still working after their drain deadline: {_names(held)}", "`roost ps`"))
    return lines


def _history(status: types.Status) -> list[Line]:
    if status.history is None:
        return []
    if status.history.failed:
        words = f"nothing is written: {status.history.failed}"
        return [Line("bad", "history", words, "make room or repair it; what happens meanwhile is missing there")]
    if status.history.gaps:
        words = f"{status.history.gaps} times something was missed"
        return [Line("warn", "history", words, "the disk was too slow or full: look at the server's log")]
    return [Line("ok", "history", f"up to revision {status.history.revision:,}")]


def _metrics(transport: Transport) -> list[Line]:
    """What only the counters tell."""
    try:
        page = transport.call("GET", "/metrics").body.decode()
    except ApiError:
        return []  # not for everybody's eyes
    counters = dict(line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#" and "{" not in line)
    lines = []
    commits = float(counters.get("roost_commit_seconds_count", 0))
    if commits:
        mean_ms = float(counters.get("roost_commit_seconds_sum", 0)) / commits * 1_000
        words = f"a commit takes {mean_ms:.1f} ms (mean of {commits:,.0f})"
        slow = mean_ms >= COMMIT_WARN_MS
        lines.append(Line("warn" if slow else "ok", "commits", words, "the store's disk is slow" if slow else ""))
    failed = float(counters.get("roost_effects_failed_total", 0))
    if failed:
        lines.append(Line("warn", "effects", f"{failed:,.0f} could not be carried out", "the server's log names them"))
    return lines


def _names(names: Any) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMES_SHOWN:,} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more
