"""What `roost doctor` asks a server: is it there and quick, who else is, do clocks agree, is anything lost."""

import socket
import ssl
import statistics
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from roost import __version__
from roost.cli.doctor import Level, Line
from roost.cli.doctor_work import look_at_work, names_shown
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
COMMITS_MIN = 20  # the first ones make files grow

# Times are shown, certificates and logins begin and end by the clock. Leases and the lead do not depend on it.
SKEW_WARN_MS, SKEW_BAD_MS = 1_000, 60_000

# A standby is behind by what is on its way; a thousand commits are more than that.
LAG_WARN = 1_000

CERTIFICATE_SHARE = 10  # certificates are renewed long before their last tenth


class Server(msgspec.Struct, frozen=True):
    """One of the servers. What is not told is not judged."""

    name: str = ""
    role: str = ""
    revision: int = 0
    now_ms: int = 0
    version: str = ""
    failed: str = ""
    api: str = ""


class Timing(msgspec.Struct, frozen=True):
    """How fast the lead changes hands."""

    ttl_ms: int
    renew_ms: int
    retry_ms: int


class Servers(msgspec.Struct, frozen=True):
    """What `GET /v1/servers` answers. A server with a store of its own has no timing."""

    items: list[Server] = []
    timing: Timing | None = None


def look_at_server(config: Config) -> Iterator[Line]:
    """Everything one URL of the client's configuration tells."""
    transport = Transport(config.url, config.token, config.ca)
    try:
        transport.call("GET", "/livez")
    except Unreachable as error:
        yield Line("bad", "server", str(error), error.hint)
        return
    except ApiError as error:
        words = f"{config.url} is no server of Roost: {error}"
        yield Line("bad", "server", words, "look at ROOST_CONFIG; is a proxy in between?")
        return
    try:
        yield _certificate(config)
        yield _latency(transport)
        yield from _standing(config, transport)
    except Unreachable as error:
        yield Line("bad", "server", f"it stopped answering: {error}", "look at its log")
    except ClientError as error:
        yield Line("bad", "server", f"{config.url} refuses: {error}", error.hint or "is the token still good?")
    finally:
        transport.close()


def _standing(config: Config, transport: Transport) -> Iterator[Line]:
    with Client(*config) as client:
        asked = time.time()
        status = client.status()
        middle_ms = (asked + time.time()) * 500
        yield _ready(config.url, status)
        yield _version("server", status.version)
        yield _clock("the server", status.now_ms - middle_ms)
        counters = _counters(transport)
        commit_ms = _commit_ms(counters)
        yield from _work(counters, commit_ms)
        yield from _servers(config, transport, middle_ms, commit_ms)
        nodes = client.nodes()
        yield from _nodes(nodes, status)
        yield from look_at_work(client, status, nodes)
        yield from _history(status)


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


def _certificate(config: Config) -> Line:
    parts = urlsplit(config.url)
    if parts.scheme != "https":
        if parts.hostname in ("127.0.0.1", "::1", "localhost"):
            return Line("ok", "tls", "plain HTTP, on this machine only")
        return Line("warn", "tls", "plain HTTP: tokens can be read on the way", "docs/access.md: serve over TLS")
    address = (parts.hostname or "", parts.port or 443)
    try:
        with socket.create_connection(address, CONNECT_TIMEOUT_S) as plain:
            with tls_context(config.ca).wrap_socket(plain, server_hostname=address[0]) as secure:
                shown: Any = secure.getpeercert()
    except OSError as error:
        return Line("bad", "tls", f"no TLS connection: {error}", "look at `ca` in the client's configuration")
    begins, ends = (ssl.cert_time_to_seconds(shown[name]) for name in ("notBefore", "notAfter"))
    left_s = ends - time.time()
    words = f"the certificate is good for another {show_duration(max(0, int(left_s)) * 1_000)}"
    if left_s < (ends - begins) / CERTIFICATE_SHARE:
        return Line("warn", "tls", words, "renew it; the server's log says why that did not happen by itself")
    return Line("ok", "tls", words)


def _latency(transport: Transport) -> Line:
    """Of small requests over one connection."""
    took_ms = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        transport.call("GET", "/livez")
        took_ms.append((time.perf_counter() - began) * 1_000)
    median = statistics.median(took_ms)
    words = f"a small request takes {median:.1f} ms (median of {REQUESTS}; the slowest {max(took_ms):.1f} ms)"
    if median < LATENCY_WARN_MS:
        return Line("ok", "latency", words)
    level: Level = "bad" if median >= LATENCY_BAD_MS else "warn"
    return Line(level, "latency", words, "look at the server's load, and at the network in between")


def _servers(config: Config, transport: Transport, middle_ms: float, commit_ms: float) -> Iterator[Line]:
    """All servers that share the store. An older one knows of no others."""
    try:
        told = msgspec.json.decode(transport.call("GET", "/v1/servers").body, type=Servers)
    except ApiError as error:
        if error.status not in (404, 405):
            yield Line("warn", "servers", f"the other servers are not told: {error}", "ask with a token that may")
        return
    except msgspec.MsgspecError:
        yield Line("warn", "servers", "the server tells of others in words this client does not know", "upgrade it")
        return
    if told.timing is None and len(told.items) <= 1:
        return
    leaders = sum(server.role == "leader" for server in told.items)
    if leaders != 1:
        words = f"{leaders} of {len(told.items)} servers say that they lead"
        yield Line("bad", "servers", words, "look at their logs; a change of leader is over in seconds")
    if len(told.items) == 1:
        yield Line("warn", "servers", "no other server stands by", "start a second one with the same --store")
    newest = max((server.revision for server in told.items), default=0)
    for server in told.items:
        yield from _server(config, server, newest, middle_ms)
    if told.timing is not None:
        yield _timing(told.timing, commit_ms)


def _server(config: Config, server: Server, newest: int, middle_ms: float) -> Iterator[Line]:
    name = server.name or "a server of no name"
    if server.failed:
        yield Line("bad", "servers", f"{name}: {server.failed}", "start it again, or look at its log")
        return
    behind = newest - server.revision
    words = f"{name} is {server.role or 'there'}" + (f", {behind:,} commits behind" if behind else "")
    if behind > LAG_WARN:
        yield Line("warn", "servers", words, "it follows too slowly: look at its load and its store")
    else:
        yield Line("ok", "servers", words)
    if server.version and server.version != __version__:
        yield _version("servers", server.version, name)
    if server.now_ms and abs(server.now_ms - middle_ms) >= SKEW_WARN_MS:
        yield _clock(name, server.now_ms - middle_ms)
    if server.api and server.api.rstrip("/") != config.url:
        try:
            Transport(server.api, "", config.ca).call("GET", "/livez")
        except ClientError as error:
            yield Line("warn", "servers", f"{name} cannot be reached from here: {error}", "look at its --advertise")


def _timing(timing: Timing, commit_ms: float) -> Line:
    words = f"lasts {timing.ttl_ms:,} ms, renewed every {timing.renew_ms:,} ms"
    # Two renewals may fail in a row, and one takes about as long as a commit; with slower ones there is no time left.
    if timing.renew_ms + 2 * (timing.retry_ms + commit_ms) >= timing.ttl_ms:
        words += f"; with commits of {commit_ms:.0f} ms that is too short"
        return Line("warn", "lead", words, "make the store faster, or --lead-ttl longer")
    return Line("ok", "lead", words)


def _clock(name: str, skew_ms: float) -> Line:
    off = abs(round(skew_ms))
    if off < SKEW_WARN_MS:
        return Line("ok", "clock", f"{name} and this machine differ by less than a second")
    words = f"the clock of {name} is {show_duration(off)} {'ahead of' if skew_ms > 0 else 'behind'} this machine's"
    return Line("bad" if off >= SKEW_BAD_MS else "warn", "clock", words, "synchronise both with NTP")


def _nodes(nodes: list[types.Node], status: types.Status) -> Iterator[Line]:
    if not nodes:
        yield Line("warn", "nodes", "there are none: nothing can run", "`roost join-tokens create`, `roost agent`")
        return
    ready = sum(node.status == "ready" for node in nodes)
    waiting = status.instances.get("queued", 0)
    wait = "1 instance waits" if waiting == 1 else f"{waiting:,} instances wait"
    words = f"{ready:,} of {len(nodes):,} are ready; {wait}"
    if ready:
        yield Line("ok", "nodes", words)
    else:
        yield Line("bad", "nodes", f"{words}: nothing can start", "`roost nodes`; look at the agents")
    patience = show_duration(status.lease_ms)
    for found, what, then in (
        ([node for node in nodes if node.status == "lost"], "lost",
         "start their agents, or `roost nodes remove NAME`"),
        ([node for node in nodes if node.status == "suspect"], "out of touch just now",
         f"wait {patience}, then look at the agent and the network"),
        ([node for node in nodes if node.status == "lost" and node.running], "lost and still holding work",
         "what is to be kept waits for its node: bring it back, or cancel the work"),
        ([node for node in nodes if node.running and 0 < (node.drain_until_ms or 0) < status.now_ms],
         "still working after their drain deadline", "`roost nodes NAME` shows what runs there"),
    ):  # fmt: skip
        if found:
            yield Line("warn", "nodes", f"{what}: {names_shown([node.name for node in found])}", then)


def _history(status: types.Status) -> Iterator[Line]:
    if status.history is None:
        return
    if status.history.failed:
        words = f"nothing is written: {status.history.failed}"
        yield Line("bad", "history", words, "make room or repair it; what happens meanwhile is missing there")
    elif status.history.gaps:
        words = f"{status.history.gaps} times something was missed"
        yield Line("warn", "history", words, "the disk was too slow or full: look at the server's log")
    else:
        yield Line("ok", "history", f"up to revision {status.history.revision:,}")


def _counters(transport: Transport) -> dict[str, float]:
    """What only `GET /metrics` tells, by name; nothing if it is not for our eyes."""
    try:
        page = transport.call("GET", "/metrics").body.decode()
    except ApiError:
        return {}
    pairs = (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#" and "{" not in line)
    return {name: float(value) for name, value in pairs}


def _commit_ms(counters: dict[str, float]) -> float:
    """How long a commit takes; 0: there were too few to tell."""
    commits = counters.get("roost_commit_seconds_count", 0)
    return counters.get("roost_commit_seconds_sum", 0) / commits * 1_000 if commits >= COMMITS_MIN else 0.0


def _work(counters: dict[str, float], commit_ms: float) -> Iterator[Line]:
    if commit_ms:
        words, is_slow = f"a commit takes {commit_ms:.1f} ms on average", commit_ms >= COMMIT_WARN_MS
        yield Line("warn" if is_slow else "ok", "commits", words, "the store's disk is slow" if is_slow else "")
    failed = counters.get("roost_effects_failed_total", 0)
    if failed:
        yield Line("warn", "effects", f"{failed:,.0f} could not be carried out", "the server's log names them")
