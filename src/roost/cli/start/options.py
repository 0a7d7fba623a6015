"""Options of the commands that start a server: those of both, of `roost server` alone, and of nodes."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from roost.cli.common.options import DURATION, SIZE, Decorated
from roost.model.keys import host_and_port

LISTEN = "127.0.0.1:8420"  # as in server/config.py, which is too heavy to import before the agents have been started
FILE = click.Path(dir_okay=False, path_type=Path)


class ListenAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)

    def reachable(self) -> "ListenAddress":
        """The same from this machine: a client cannot connect to "all addresses"."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(self.host, self.host)
        return ListenAddress(host, self.port)

    def next_port(self) -> "ListenAddress":
        return ListenAddress(self.host, self.port + 1 if self.port else 0)


class AddressType(click.ParamType[ListenAddress]):
    name = "HOST:PORT"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> ListenAddress:
        host, _, port = value.rpartition(":")
        if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            self.fail(f"{value!r} is not like 127.0.0.1:8420", param, ctx)
        return ListenAddress(host.strip("[]") or "127.0.0.1", int(port))


ADDRESS = AddressType()


def option(*names: str, help: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """An option of a server, which an environment variable of the same name sets: --leader-ttl, $ROOST_LEADER_TTL."""
    variable = names[0].partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, help=help, **{"envvar": f"ROOST_{variable}", **settings})


def options(*added: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    def decorate(command: Decorated) -> Decorated:
        for add in reversed(added):
            command = add(command)
        return command

    return decorate


def _readable(ctx: click.Context, param: click.Parameter, values: tuple[Path, ...]) -> list[str]:
    """As an option of the keeper, which takes them as in PATH."""
    paths = [str(path.absolute()) for path in values]
    if wrong := next((path for path in paths if ":" in path), ""):
        raise click.BadParameter(f"{wrong}: a path here has no colon", ctx, param)
    return ["--readable", ":".join(paths)] if paths else []


def _run_processes(ctx: click.Context, param: click.Parameter, most: int | None) -> list[str]:
    return ["--pids", str(most)] if most else []


def _absolute(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """NAME=PATH as the agent takes it, which is somewhere else."""
    pairs = [value.partition("=") for value in values]
    return tuple(f"{name}={os.path.abspath(path)}" if path else name for name, _, path in pairs)


readable_option = click.option(
    "--readable", multiple=True, callback=_readable, metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory that runs in sandboxes can read although it is hidden; repeatable.",
)  # fmt: skip
run_processes_option = click.option(
    "--run-processes", type=click.IntRange(1, 1 << 22), metavar="N", callback=_run_processes,
    help="Maximum processes and threads of one run. [default: 32768]",
)  # fmt: skip
taint_option = click.option(
    "--taint", "taints", multiple=True, metavar="KEY[=VALUE][:soft]",
    help="Taint: only workloads that tolerate it are placed here; `:soft` means prefer other nodes.",
)  # fmt: skip
#: What an agent gives to runs beside its resources, for `roost agent` and `roost up` alike.
run_options = options(
    click.option("--docker", default="", metavar="unix://PATH",
                 help="Socket of the container engine, or `none`. [default: where Docker and Podman listen]"),
    click.option("--image-disk", "image_disk", default="", metavar="PERCENT",
                 help="Remove unused images that Roost fetched above this share of the disk. [default: 85]"),
    click.option("--volume", multiple=True, metavar="NAME=PATH[:ro]",
                 help="Directory that containers may mount by this name; repeatable."),
    click.option("--qemu", default="", metavar="PATH",
                 help="Program of virtual machines, or `none`. [default: qemu-system-x86_64]"),
    click.option("--vm-image", multiple=True, callback=_absolute, metavar="NAME=PATH",
                 help="Disk (qcow2 or raw), kernel or initrd for virtual machines by this name; repeatable."),
    click.option("--vm-bridge", multiple=True, metavar="NAME=INTERFACE",
                 help="Bridge that virtual machines may join by this name; repeatable."),
    click.option("--isolation", default="", metavar="LEVEL",
                 help="Isolation of runs: sandbox, user or none. [default: the best this machine offers]"),
    click.option("--uid-range", default="", metavar="FROM-TO",
                 help="User ids of projects, if the agent is root. [default: 1900000000-1900009999]"),
)  # fmt: skip
RUN_OPTIONS = ("docker", "image_disk", "volume", "qemu", "vm_image", "vm_bridge", "isolation", "uid_range")


def words_of(given: Mapping[str, str | Sequence[str]]) -> list[str]:
    """Options of an agent as words of its command line, without those that were not given."""
    listed = [(name, [value] if isinstance(value, str) else value) for name, value in given.items()]
    return [
        word for name, values in listed for item in values if item for word in (f"--{name.replace('_', '-')}", item)
    ]


shared_options = options(
    option("--backfill-after", "backfill_after_ms", type=DURATION, show_envvar=True,
           help="Pending time before a backfill reservation is made; 0: at once. [default: 30s]"),
    option("--preempt-margin", type=click.IntRange(0, 100), metavar="N", show_envvar=True,
           help="Priority difference that allows preemption; 0: no preemption by priority. [default: 20]"),
    option("--record-decisions", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", show_envvar=True,
           help="Record all input and decisions here, for `roost sim replay`."),
    option("--record-max", type=SIZE, help="Maximum size of one recording; then a new file begins. [default: 1GiB]"),
    option("--record-total", type=SIZE, help="Maximum size of all; the oldest are deleted. [default: 10GiB]"),
    option("--history", type=click.Choice(["auto", "on", "off"]), show_envvar=True,
           help="Store finished workloads and events, for `roost history`; auto: unless the store is memory."),
    option("--history-retention", "history_retention_ms", type=DURATION,
           help="Retention of the history. [default: 90d]"),
    option("--history-max", type=SIZE,
           help="Maximum size of the history; the oldest entries are deleted. [default: 10GiB]"),
    option("--log-limit", type=SIZE, show_envvar=True,
           help="Maximum size of one log of an attempt; the rest is not kept, and the log says so. [default: 1GiB]"),
    option("--blobs-grace", "blobs_grace_ms", type=DURATION, show_envvar=True,
           help="Files that nothing names any longer are deleted when they are this old. [default: 1d]"),
    option("--advertise", multiple=True, metavar="HOST",
           help="Name or address by which others reach this server; repeatable. [default: the listen address]"),
    option("--tls", type=click.Choice(["auto", "on", "off"]), default="auto", show_default=True,
           help="TLS for the API and for controllers; auto: for each that does not listen on loopback."),
    option("--tls-cert", type=FILE, metavar="FILE",
           help="Your certificate for the API, PEM; read again when it changes. [default: one of Roost's CA]"),
    option("--tls-key", type=FILE, metavar="FILE", help="The key of --tls-cert."),
    option("--key-file", "key_files", type=FILE, multiple=True, metavar="FILE",
           help="Key that encrypts secrets at rest, 64 hexadecimal digits. Repeatable: the first encrypts, "
                "all decrypt. [default: DATA/seal.key]"),
    option("--key-command", default="", metavar="COMMAND", help="Command that prints that key."),
    option("--certificate-life", "certificate_ms", type=DURATION,
           help="Lifetime of certificates; renewed automatically. [default: 30d]"),
    click.option("--new-authority", is_flag=True, help="Replace the CA: all nodes must join again."),
    click.option("--hook", "hooks", multiple=True, metavar="NAME[:EVENT,...]=COMMAND",
                 help="Run a command on this host for each event (JSON on standard input)."),
    option("--webhook-allow", multiple=True, metavar="CIDR",
           help="Network that webhooks may reach, or `public`; repeatable. [default: public]"),
    option("--controller-listen", type=ADDRESS, help="Address for controllers. [default: the port of the API + 2]"),
    option("--controllers/--no-controllers", default=True, help="Serve the gRPC API for controllers."),
)  # fmt: skip
server_options = options(
    option("--data", type=click.Path(path_type=Path), help="Data directory."),
    option("--store", default="sqlite", metavar="STORE", show_default=True,
           help="sqlite, memory (nothing is stored), postgresql://... or etcd://... (shared by servers)."),
    option("--name", metavar="NAME", help="Server name. [default: the host name]"),
    option("--blobs", metavar="PLACE", show_envvar=True,
           help="Logs and files of workloads: a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=REGION. "
                "Servers that share a store also share this. [default: DATA/blobs]"),
    option("--leader-ttl", "leader_ttl_ms", type=DURATION,
           help="A leader that does not renew for this long is replaced. [default: 1.5s]"),
    option("--leader-renew", "leader_renew_ms", type=DURATION, help="Interval of renewals. [default: 400ms]"),
    option("--leader-retry", "leader_retry_ms", type=DURATION,
           help="Interval after a failed renewal. [default: 150ms]"),
    option("--store-outage-grace", "store_outage_grace_ms", type=DURATION,
           help="How long agents are answered while the store is away. [default: 60s]"),
    option("--listen", type=ADDRESS, default=LISTEN, show_default=True, help="Address of the API."),
    option("--agents-listen", type=ADDRESS, help="Address for agents. [default: the next port]"),
    option("--strategy", default="", envvar="SCHEDULING_STRATEGY",
           help="Placement strategy. [default: least_loaded]"),
    option("--lease", "lease_ms", type=int, envvar="ROOST_LEASE_MS", metavar="MS",
           help="A node without contact for this long is lost."),
    shared_options,
    option("--oidc-issuer", metavar="URL", show_envvar=True,
           help="OpenID issuer whose users may log in."),
    option("--oidc-client-id", metavar="ID", help="Client ID of Roost at the issuer."),
    option("--oidc-claim", metavar="NAME", help="Claim that names a user. [default: email]"),
    option("--seed", type=int, default=0, help="Seed of randomised strategies."),
    option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
           help="Log level."),
    option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
           help="auto: text for a terminal, JSON otherwise."),
)  # fmt: skip
