"""roost run: submit a command, stream what it writes, end as it ends."""

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from roost.cli.interrupts import Interrupts
from roost.cli.outcome import BROKEN_PIPE, FAILED, NOT_PLACED, TIMED_OUT
from roost.cli.output import print_json, print_json_line, say
from roost.cli.session import connect, json_option, pairs, project_option
from roost.cli.targets import Target

if TYPE_CHECKING:
    from roost.client import Client
    from roost.client.types import Ending, Workload

PATIENCE_S = 1.0  # after so long without a sign, say what it waits for
AGAIN_S = 10.0  # and look again so often, in case the reason has changed
SUFFIX_BYTES = 3  # six hexadecimal digits: names of one command do not meet by chance
NAME_LENGTH_MAX = 40  # of the part made from the command
SIGNAL_BASE = 128
WAITING_CODES = ("no_nodes", "insufficient_resources", "quota_exceeded", "unsatisfiable", "maintenance")


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  roost run -- echo hello
  roost run --cpu 2 --memory 4GiB --timeout 10m -- make test
  roost run -d --name nightly --require "labels.disk == 'nvme'" -- ./backup.sh
  roost run --count 10 --no-exclusive -- sh -c 'echo I am $ROOST_INDEX'
\b
Exit code: the command's own; 128 + N when signal N ended it, 124 when it ran past its timeout, 1 when it could not be
run, 4 (with -d) when it has no place yet.
Next: with -d, `roost logs -f NAME` and `roost wait NAME`.
""",
)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND [ARG]...")
@click.option("--name", default="", help="A name for it. [default: made from the command]")
@click.option("--cpu", help="Cores, like 2, 0.5 or 500m. [default: room for one, if nothing is asked for]")
@click.option("--memory", help="Like 512MiB or 4GiB.")
@click.option("--disk", help="Like 10GiB.")
@click.option("--gpu", type=int, help="Whole GPUs.")
@click.option(
    "--resource", "resources", multiple=True, callback=pairs, metavar="K=N", help="Anything else nodes count."
)
@click.option("-e", "--env", "variables", multiple=True, metavar="K=V", help="For the command; K alone: as it is here.")
@click.option("--timeout", metavar="DURATION", help="How long it may run, like 10m.")
@click.option("--queue-timeout", metavar="DURATION", help="How long it may wait for a place.")
@click.option("--grace", metavar="DURATION", help="Between SIGTERM and SIGKILL when it is stopped. [default: 10s]")
@click.option("--priority", type=int, help="0 to 100, higher first. [default: 50]")
@click.option("--count", type=int, default=1, show_default=True, help="How many of it.")
@click.option("--pool", default="", help="Only on nodes of this pool.")
@click.option("--require", multiple=True, metavar="EXPR", help="A rule about the node, like \"zone == 'a'\".")
@click.option("--strategy", default="", help="How the node is chosen. [default: the server's]")
@click.option("--retries", type=int, help="How often it is tried again when its node is lost. [default: 3]")
@click.option(
    "--no-exclusive", is_flag=True, help="It may run twice: start it elsewhere as soon as its node is out of touch."
)
@click.option("-d", "--detach", is_flag=True, help="Submit it, print its name, and leave.")
@project_option
@json_option
@click.pass_context
def run(ctx: click.Context, argv: tuple[str, ...], detach: bool, as_json: bool, **given: Any) -> None:
    """Run a command somewhere, stream its output, return its exit code.

    Ctrl-C cancels it and waits until it has stopped; a second Ctrl-C leaves at once.
    """
    document = make_document(argv, given)
    with connect() as client:
        if detach:
            ctx.exit(_leave(client, client.submit(document), as_json))
        with Interrupts() as interrupts:  # before it is submitted: from then on there is something to cancel
            ctx.exit(_attach(client, client.submit(document), interrupts, as_json))


def make_document(argv: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """The workload that the options describe. What was not said is left to the server."""
    amounts = {name: given[name] for name in ("cpu", "memory", "disk", "gpu") if given[name] is not None}
    amounts |= dict(each.split("=", 1) for each in given["resources"])
    placement = {name: given[name] for name in ("pool", "strategy") if given[name]}
    if given["require"]:
        placement["require"] = list(given["require"])
    document: dict[str, Any] = {
        "name": given["name"] or _made_name(argv[0]),
        "project": given["project"],
        "command": list(argv),
        "resources": amounts,
        "count": given["count"],
    }
    optional = {
        "env": dict(_variable(each) for each in given["variables"]),
        "placement": placement,
        **{name: given[name] for name in ("timeout", "queue_timeout", "grace", "priority", "retries")},
        "exclusive": False if given["no_exclusive"] else None,
    }
    return document | {name: value for name, value in optional.items() if value not in (None, {})}


def exit_code_of(ending: "Ending") -> int:
    """The job's own code; what a shell says of signals and timeouts; 1 for whatever else kept it from succeeding."""
    if ending.state == "succeeded":
        return 0
    if ending.state == "timed_out":
        return TIMED_OUT
    if ending.state == "rejected":
        return NOT_PLACED
    if ending.signal:
        return SIGNAL_BASE + ending.signal
    return ending.exit_code or FAILED


def _leave(client: "Client", workload: "Workload", as_json: bool) -> int:
    if as_json:
        print_json(workload)
    else:
        click.echo(str(Target(workload.project, workload.name)))
    if workload.state != "queued":
        return NOT_PLACED if workload.state == "rejected" else 0
    why = client.why(workload.project, workload.name, advice=False)
    if why.code not in WAITING_CODES:
        return 0
    say(why.words)
    return NOT_PLACED


def _attach(client: "Client", workload: "Workload", interrupts: Interrupts, as_json: bool) -> int:
    """Follow to the end; the exit code is the first instance's that did not succeed."""
    from roost.cli.following import JsonSink, PrefixSink, Sink, follow_all  # noqa: PLC0415

    targets = [Target(workload.project, workload.name, index) for index in range(workload.count)]
    kind = JsonSink if as_json else Sink if workload.count == 1 else PrefixSink
    if as_json:
        print_json_line({"event": "submitted", "workload": workload})
    first = 0 if workload.state == "queued" else 1
    interrupts.patience = 2
    watcher = Watcher(client, targets[0], interrupts)
    try:
        endings = follow_all(client, targets, kind, attempt=first, tick=watcher.tick, wake_fd=interrupts.fd)
    except BrokenPipeError:
        client.cancel(workload.project, workload.name)  # nobody reads it any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    if watcher.left:
        say(f"left; `roost wait {workload.name}` waits until it has stopped")
        return SIGNAL_BASE + interrupts.last
    bad = [(target, ending) for target, ending in sorted(endings.items(), key=lambda each: each[0].index or 0)
           if ending.state != "succeeded"]  # fmt: skip
    for target, ending in bad[:5]:
        if ending.exit_code is None or workload.count > 1:
            say(f"{target} is {ending.state}: {ending.cause}")
    if interrupts.count:
        return SIGNAL_BASE + interrupts.last
    return exit_code_of(bad[0][1]) if bad else 0


class Watcher:
    """Sits beside the stream: says what is waited for, and passes Ctrl-C on."""

    def __init__(self, client: "Client", target: Target, interrupts: Interrupts) -> None:
        self.left = False
        self._client = client
        self._target = target
        self._interrupts = interrupts
        self._seen = 0
        self._told = ""
        self._look_at = time.monotonic() + PATIENCE_S

    def tick(self, came: bool) -> float | None:
        """How long to wait for the next piece; below 0: for ever; None: stop following."""
        if self._interrupts.count > self._seen:
            self._interrupts.clear()
            self._seen = self._interrupts.count
            if self._seen > 1:
                self.left = True
                return None
            say(f"cancelling {self._target.name}; once more to leave without waiting")
            self._client.cancel(self._target.project, self._target.name)
        if came:
            return -1.0
        if time.monotonic() >= self._look_at:
            self._say_why()
            self._look_at = time.monotonic() + AGAIN_S
        return max(0.0, self._look_at - time.monotonic())

    def _say_why(self) -> None:
        why = self._client.why(self._target.project, self._target.name, advice=False)
        if why.code in WAITING_CODES and why.words != self._told:
            self._told = why.words
            say(why.words)


def _made_name(program: str) -> str:
    """Something like the command, and something nobody else has."""
    base = "".join(each if each.isascii() and each.isalnum() else "-" for each in os.path.basename(program))
    return f"{base.strip('-')[:NAME_LENGTH_MAX].strip('-') or 'run'}-{os.urandom(SUFFIX_BYTES).hex()}"


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if separator:
        return name, value
    if name not in os.environ:
        raise click.UsageError(f"--env {name}: there is no such variable here; give it a value with {name}=...")
    return name, os.environ[name]
