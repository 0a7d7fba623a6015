"""Checks of `roost doctor` about servers: latency, certificates, versions, clocks, leadership, nodes and history."""

import socket
import ssl
import statistics
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from roost import __version__
from roost.cli.common.exit_codes import hint_of
from roost.cli.machines.doctor.command import DoctorCheck, bad, ok, warn
from roost.cli.machines.doctor.work import look_at_work, warnings
from roost.client import Client
from roost.client.config import Config
from roost.client.errors import ApiError, ClientError, Unreachable
from roost.client.transport import CONNECT_TIMEOUT_S, Transport, tls_context
from roost.model.limits import DEFAULT_PROJECT
from roost.model.records.node import ENFORCEABLE
from roost.model.spec.units import show_duration
from roost.model.states import InstanceState, IsolationLevel
from roost.schema.access.blob_keys import BlobKeysView
from roost.schema.nodes import NodeView
from roost.schema.servers import HistoryStatus, ServerView, StatusView, TimingView

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

#: A server that is busy, or another that takes over, takes seconds.
LOGS_STUCK_MS = 60_000

NO_BLOB = "sha256:" + 64 * "0"

CERTIFICATE_SHARE = 10  # certificates are renewed long before their last tenth


def look_at_server(config: Config) -> Iterator[DoctorCheck]:
    transport = Transport(config.url, config.token, config.ca)
    try:
        transport.call("GET", "/livez")
    except Unreachable as error:
        yield bad("server", str(error), error.hint)
        return
    except ApiError as error:
        message = f"{config.url} is no server of Roost: {error}"
        yield bad("server", message, "check ROOST_CONFIG; is there a proxy?")
        return
    try:
        yield _certificate(config)
        yield _latency(transport)
        yield from _standing(config, transport)
    except Unreachable as error:
        yield bad("server", f"it stopped answering: {error}", "check its log")
    except ClientError as error:
        yield bad("server", f"{config.url} refuses: {error}", hint_of(error) or "is the token still good?")
    finally:
        transport.close()


def _standing(config: Config, transport: Transport) -> Iterator[DoctorCheck]:
    with Client(*config) as client:
        asked = time.time()
        status = client.status()
        middle_ms = (asked + time.time()) * 500
        if status.ready:
            yield ok("server", f"{config.url} answers and decides, revision {status.revision:,}")
        else:
            then = f"check its log; {config.url}/readyz has the reason"
            yield bad("server", f"{config.url} answers, but cannot decide", then)
        yield _version("server", status.version)
        yield _clock("the server", status.now_ms - middle_ms)
        counters = _counters(transport)
        commits = counters.get("roost_commit_seconds_count", 0)
        commit_ms = 0.0  # there were too few to tell
        if commits >= COMMITS_MIN:
            commit_ms = counters.get("roost_commit_seconds_sum", 0) / commits * 1_000
        yield from _work(counters, commit_ms)
        yield from _blobs(transport, counters)
        yield from _servers(config, client, middle_ms, commit_ms)
        nodes = client.nodes.list()
        yield from _nodes(nodes, status)
        yield from look_at_work(client, status, nodes)
        yield from _history(status)
        yield from _tasks(status)


def _version(about: str, version: str, name: str = "the server") -> DoctorCheck:
    if version == __version__:
        return ok(about, f"{name} and this client are Roost {version}")
    message = f"{name} is Roost {version}, this client is {__version__}"
    return warn(about, message, "upgrade the older one; servers first")


def _certificate(config: Config) -> DoctorCheck:
    parts = urlsplit(config.url)
    if parts.scheme != "https":
        if parts.hostname in ("127.0.0.1", "::1", "localhost"):
            return ok("tls", "plain HTTP, on this machine only")
        return warn("tls", "plain HTTP: tokens can be read on the way", "start the server with --tls on")
    address = (parts.hostname or "", parts.port or 443)
    try:
        with socket.create_connection(address, CONNECT_TIMEOUT_S) as plain:
            with tls_context(config.ca).wrap_socket(plain, server_hostname=address[0]) as secure:
                shown: Any = secure.getpeercert()
    except OSError as error:
        return bad("tls", f"no TLS connection: {error}", "check `ca` in the client configuration")
    begins, ends = (ssl.cert_time_to_seconds(shown[name]) for name in ("notBefore", "notAfter"))
    left_s = ends - time.time()
    message = f"the certificate is valid for another {show_duration(max(0, int(left_s)) * 1_000)}"
    if left_s < (ends - begins) / CERTIFICATE_SHARE:
        return warn("tls", message, "renew it; the log of the server shows why it was not renewed")
    return ok("tls", message)


def _latency(transport: Transport) -> DoctorCheck:
    took_ms = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        transport.call("GET", "/livez")
        took_ms.append((time.perf_counter() - began) * 1_000)
    median = statistics.median(took_ms)
    message = f"a small request takes {median:.1f} ms (median of {REQUESTS}; the slowest {max(took_ms):.1f} ms)"
    if median < LATENCY_WARN_MS:
        return ok("latency", message)
    report = bad if median >= LATENCY_BAD_MS else warn
    return report("latency", message, "check the load of the server, and the network")


def _servers(config: Config, client: Client, middle_ms: float, commit_ms: float) -> Iterator[DoctorCheck]:
    try:
        servers = client.servers.list()
    except ApiError as error:
        if error.status not in (404, 405):
            yield warn("servers", f"the list of servers is not readable: {error}", "use a token with a higher role")
        return
    except msgspec.MsgspecError:
        yield warn("servers", "the server answers in a format that this client does not know", "upgrade it")
        return
    if servers.timing is None and len(servers.items) <= 1:
        return
    leaders = sum(server.role == "leader" for server in servers.items)
    if leaders != 1:
        message = f"{leaders} of {len(servers.items)} servers are leaders"
        yield bad("servers", message, "check their logs; a failover takes seconds")
    if len(servers.items) == 1:
        yield warn("servers", "there is no standby", "start a second one with the same --store")
    newest = max((server.revision for server in servers.items), default=0)
    for server in servers.items:
        yield from _server(config, server, newest, middle_ms)
    if servers.timing is not None:
        yield _timing(servers.timing, commit_ms)


def _server(config: Config, server: ServerView, newest: int, middle_ms: float) -> Iterator[DoctorCheck]:
    if server.failed:
        yield bad("servers", f"{server.name}: {server.failed}", "start it again, or check its log")
        return
    behind = newest - server.revision
    message = f"{server.name} is {server.role}" + (f", {behind:,} commits behind" if behind else "")
    if behind > LAG_WARN:
        yield warn("servers", message, "it follows too slowly: check its load and its store")
    else:
        yield ok("servers", message)
    if server.version != __version__:
        yield _version("servers", server.version, server.name)
    if abs(server.now_ms - middle_ms) >= SKEW_WARN_MS:
        yield _clock(server.name, server.now_ms - middle_ms)
    if server.api and server.api.rstrip("/") != config.url:
        try:
            Transport(server.api, "", config.ca).call("GET", "/livez")
        except ClientError as error:
            yield warn("servers", f"{server.name} cannot be reached from here: {error}", "check its --advertise")


def _timing(timing: TimingView, commit_ms: float) -> DoctorCheck:
    message = f"lasts {timing.ttl_ms:,} ms, renewed every {timing.renew_ms:,} ms"
    # Two renewals may fail in a row, and one takes about as long as a commit; with slower ones there is no time left.
    if timing.renew_ms + 2 * (timing.retry_ms + commit_ms) >= timing.ttl_ms:
        message += f"; with commits of {commit_ms:.0f} ms that is too short"
        return warn("lead", message, "make the store faster, or --leader-ttl longer")
    return ok("lead", message)


def _clock(name: str, skew_ms: float) -> DoctorCheck:
    off = abs(round(skew_ms))
    if off < SKEW_WARN_MS:
        return ok("clock", f"{name} and this machine differ by less than a second")
    message = f"the clock of {name} is {show_duration(off)} {'ahead of' if skew_ms > 0 else 'behind'} this machine's"
    return (bad if off >= SKEW_BAD_MS else warn)("clock", message, "synchronise both with NTP")


def _nodes(nodes: list[NodeView], status: StatusView) -> Iterator[DoctorCheck]:
    if not nodes:
        yield warn("nodes", "there are none: nothing can run", "`roost join-tokens create`, `roost agent`")
        return
    ready = sum(node.status == "ready" for node in nodes)
    pending = status.instances.get(InstanceState.QUEUED, 0)
    message = f"{ready:,} of {len(nodes):,} are ready; {pending:,} instance{'s' * (pending != 1)} pending"
    if ready:
        yield ok("nodes", message)
    else:
        yield bad("nodes", f"{message}: nothing can start", "`roost nodes`; check the agents")
    yield _isolated(nodes)
    late = [node for node in nodes if node.running and 0 < (node.drain_until_ms or 0) < status.now_ms]
    yield from warnings("nodes", (
        ("lost", [node.name for node in nodes if node.status == "lost"],
         "start their agents, or `roost nodes remove NAME`"),
        ("suspect", [node.name for node in nodes if node.status == "suspect"],
         f"wait {show_duration(status.lease_ms)}, then check the agent and the network"),
        ("lost and still holding work", [node.name for node in nodes if node.status == "lost" and node.running],
         "pinned work waits for its node: start its agent, or cancel the work"),
        ("restarting a task of their agent", list(filter(None, map(_restarted, nodes))),
         "see agent.log in the directory of the agent"),
        ("not sending the logs that they have", [node.name for node in nodes if _is_stuck(node)],
         "check the disk of the server, and agent.log in the directory of the agent"),
        ("running work as root, so that a submitter can do anything there",
         [node.name for node in nodes if node.user == "root" and node.isolation == IsolationLevel.NONE],
         "start their agents without `--isolation none`, or as a user of their own"),
        ("not enforcing all limits", list(filter(None, map(_unenforced, nodes))),
         "run their agents as root or with a delegated cgroup, or do not rely on limits there"),
        ("without KVM, so that virtual machines are slow there", list(filter(None, map(_emulates, nodes))),
         "give the agent access to /dev/kvm and restart it; other nodes have `accel kvm` in `roost nodes show`"),
        ("still working after their drain deadline", [node.name for node in late],
         "`roost nodes show NAME` lists its work"),
    ))  # fmt: skip


def _isolated(nodes: list[NodeView]) -> DoctorCheck:
    counts = {level: sum(node.isolation == level for node in nodes) for level in reversed(IsolationLevel)}
    labels = {
        IsolationLevel.SANDBOX: "in sandboxes",
        IsolationLevel.USER: "with a user for each project only",
        IsolationLevel.NONE: "not isolated",
    }
    parts = [f"{labels[level]} on {count:,}" for level, count in counts.items() if count]
    return ok("isolation", f"processes are {', '.join(parts)} of {len(nodes):,} nodes")


def _restarted(node: NodeView) -> str:
    tasks = node.usage.task_restarts if node.usage is not None else {}
    counts = ", ".join(f"{task} {count} times" for task, count in sorted(tasks.items()))
    return f"{node.name} ({counts})" if counts else ""


def _unenforced(node: NodeView) -> str:
    missing = ", ".join(name for name in ENFORCEABLE if name not in node.enforces)
    return f"{node.name} ({missing})" if missing else ""


def _emulates(node: NodeView) -> str:
    """A node that was made for virtual machines: its operator named images. Others merely have QEMU."""
    has_images = any(item.startswith("image/") for item in node.vm)
    return node.name if has_images and "accel/kvm" not in node.vm else ""


def _is_stuck(node: NodeView) -> bool:
    return node.usage is not None and node.usage.logs_stuck_ms > LOGS_STUCK_MS


def _tasks(status: StatusView) -> Iterator[DoctorCheck]:
    if status.task_restarts:
        counts = ", ".join(f"{task} {count} times" for task, count in sorted(status.task_restarts.items()))
        yield warn("background tasks", f"restarted: {counts}", "see the log of the server, and report it as a defect")


def _history(status: StatusView) -> Iterator[DoctorCheck]:
    if status.history is None:
        return
    if status.history.failed:
        message = f"nothing is written: {status.history.failed}"
        yield bad("history", message, _held(status.history))
    elif status.history.is_apart:
        message = "each server has a history of its own, which is lost with it"
        yield warn("history", message, "give all servers the same --blobs: docs/guides/history.md")
    elif status.history.gaps:
        message = f"{status.history.gaps} times something was missed"
        yield warn("history", message, "the disk was too slow or full: check the log of the server")
    else:
        where = f", shared in {status.history.place}" if status.history.place else ""
        yield ok("history", f"up to revision {status.history.revision:,}{where}")


def _held(history: HistoryStatus) -> str:
    if history.place:
        return f"repair it; {history.waiting:,} changes are held, and written then"
    return "make room or repair it; what happens meanwhile is missing there"


def _counters(transport: Transport) -> dict[str, float]:
    """Counters of `GET /metrics` by name; none if our role does not allow it."""
    try:
        page = transport.call("GET", "/metrics").body.decode()
    except ApiError:
        return {}
    pairs = (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#" and "{" not in line)
    return {name: float(value) for name, value in pairs}


def _blobs(transport: Transport, counters: dict[str, float]) -> Iterator[DoctorCheck]:
    """Ask for a blob that is not there: a store that works says so."""
    try:
        transport.call("GET", f"/v1/projects/{DEFAULT_PROJECT}/blobs/{NO_BLOB}")
    except ApiError as error:
        if error.code == "blobs_unavailable":
            hint = "no file is sent or read until then; check --blobs, or `roost blobs credentials set`"
            yield bad("blobs", str(error), hint)
    yield from _blob_keys(transport)
    if counters.get("roost_blobs_unshared"):
        message = "the servers share a store, but not the files of workloads"
        yield warn("blobs", message, "give all servers the same --blobs: a shared directory, or S3")


def _blob_keys(transport: Transport) -> Iterator[DoctorCheck]:
    """Whether the servers can open the sealed credentials of S3; nothing if our role does not allow it."""
    try:
        keys = msgspec.json.decode(transport.call("GET", "/v1/blobs/credentials").body, type=BlobKeysView)
    except ApiError:
        return
    if keys.sealed and not keys.readable:
        hint = "give the servers the --key-file that sealed them, or `roost blobs credentials set`"
        yield bad("blobs", "the key of the server does not open the credentials of S3", hint)
    elif keys.sealed and not keys.newest_key:
        yield warn("blobs", "the credentials of S3 are sealed with an older key", "`roost secrets reseal`")
    elif keys.sealed:
        yield ok("blobs", f"sealed credentials for bucket {keys.bucket}, set by {keys.changed_by}")


def _work(counters: dict[str, float], commit_ms: float) -> Iterator[DoctorCheck]:
    message = f"a commit takes {commit_ms:.1f} ms on average"
    if commit_ms >= COMMIT_WARN_MS:
        yield warn("commits", message, "the store's disk is slow")
    elif commit_ms:
        yield ok("commits", message)
    failed = counters.get("roost_effects_failed_total", 0)
    if failed:
        yield warn("effects", f"{failed:,.0f} could not be carried out", "the server's log names them")
