"""roost run: submit a command, stream its output, return its exit code."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from roost.cli.common.exit_codes import FAILED, NOT_PLACED, TIMED_OUT
from roost.cli.common.interrupts import Interrupts, Watcher
from roost.cli.common.kept_files import report_kept
from roost.cli.common.log_follow import JsonSink, LogSink, PrefixSink, follow_all
from roost.cli.common.options import json_option, pairs, pairs_option, project_option
from roost.cli.common.output import echo_err, print_json, print_json_line
from roost.cli.common.sending import send_paths, sent_places
from roost.cli.common.session import connect
from roost.cli.common.targets import Target
from roost.cli.common.template_values import TEMPLATE, TemplateName, template_block
from roost.cli.work.script import find_script
from roost.cli.work.why import BLOCKED_CODES, UNKNOWN, explain, warn_unenforced
from roost.client import Client
from roost.schema.feed import EndingView
from roost.schema.why import WhyView
from roost.schema.work import WorkloadView

SUFFIX_BYTES = 3  # six hexadecimal digits: names of one command do not meet by chance
NAME_LENGTH_MAX = 40  # of the part made from the command
SIGNAL_BASE = 128
CPU_HINT = "without --cpu it asks for one whole core; `--cpu 0.1` asks for less, and `roost why {}` has suggestions"


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND [ARG]...]")
@click.option("--name", default="", help="Name of the job. [default: from the command]")
@click.option("--template", type=TEMPLATE, metavar="NAME[@VERSION]", help="In place of a command: what it runs.")
@click.option("-P", "--parameter", "parameters", multiple=True, callback=pairs, metavar="K=V",
              help="Parameter of the template; K=@FILE: the text of a file. Repeat it for an array.")  # fmt: skip
@click.option("--cpu", help="Cores, like 2, 0.5 or 500m. [default: 1, without a limit]")
@click.option("--memory", help="Like 512MiB or 4GiB.")
@click.option("--disk", help="Like 10GiB.")
@click.option("--gpu", type=int, help="Whole GPUs.")
@pairs_option("--resource", "resources", metavar="K=N", help="Other countable resource.")
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="K=V", help="Environment variable; K alone: its value here."
)
@click.option("--timeout", metavar="DURATION", help="Time limit of an attempt, like 10m.")
@click.option("--queue-timeout", metavar="DURATION", help="Time limit of the pending state.")
@click.option("--grace", metavar="DURATION", help="Between SIGTERM and SIGKILL when it is stopped. [default: 10s]")
@click.option("--priority", type=int, help="0 to 100, higher first. [default: 50]")
@click.option("--count", type=int, help="Number of instances. [default: 1]")
@click.option("--pool", default="", help="Only on nodes of this pool.")
@click.option("--require", multiple=True, metavar="EXPR", help="A rule about the node, like \"zone == 'a'\".")
@click.option("--strategy", default="", help="Placement strategy. [default: the server's]")
@click.option("--retries", type=int, help="Retries after a lost node. [default: 3]")
@click.option("--no-fenced", is_flag=True, help="Not fenced: start it elsewhere as soon as its node is disconnected.")
@click.option(
    "--stderr", type=click.Choice(("merge", "separate")),
    help="Into the log of stdout, or a log of its own. [default: separate if stdout and stderr differ here]",
)  # fmt: skip
@click.option("--send", "sent", multiple=True, metavar="PATH[:TO]",
              help="A file or directory for the work directory; repeatable.")  # fmt: skip
@click.option("--workdir", type=click.Path(), metavar="DIR", help="Send what is in a directory, and run there.")
@click.option("--no-send", is_flag=True, help="Do not send a script of this machine by itself.")
@click.option("-o", "--output", "outputs", multiple=True, metavar="PATTERN",
              help="Files to keep when it has ended; `roost get NAME` fetches them.")  # fmt: skip
@click.option("-d", "--detach", is_flag=True, help="Submit it, print its name, and exit.")
@project_option
@json_option
def run(
    argv: tuple[str, ...], template: TemplateName | None, parameters: tuple[str, ...], detach: bool, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Run a command on a node, stream its output, return its exit code.

    Ctrl-C cancels it and waits until it has stopped; a second Ctrl-C exits at once. Where stdout and stderr of this
    command are one file or terminal, the output comes in the order of writing. Where they differ, each goes to its
    own, and the order between them is not exact. With -d and --json they are merged, unless --stderr says otherwise.
    With --template, other options replace fields of the template.

    A script of this machine is sent: a relative path of a file, as the program or behind an interpreter. Other files
    are named by --send, or --workdir sends a directory without what its .gitignore and .roostignore name. Absolute
    paths are those of the node. Contents that the server has are not sent again.

    Examples:
      roost run -- echo hello
      roost run train.py --lr 0.1                  sends train.py
      roost run --send data --send ../model.bin:weights.bin -o 'out/**' train.py
      roost run --workdir . -o dist -- make dist   sends the working tree
      roost run --cpu 2 --memory 4GiB --timeout 10m -- make test
      roost run -d --name nightly --require "labels.disk == 'nvme'" -- /opt/backup.sh
      roost run --count 10 --no-fenced -- sh -c 'echo I am $ROOST_INDEX'
      roost run ./report.sh 2>/dev/null | jq .total
      roost run --template train -P lr=0.01 -P epochs=3

    Exit code: that of the command; 128 + N for signal N, 124 for a timeout, 1 when it could not be
    started, 4 (with -d) when it is pending.
    Next: with -d, `roost logs -f NAME` and `roost wait NAME`; with -o, `roost get NAME`.
    """
    if given["stderr"] is None and not detach and not as_json and has_separate_stderr():
        given["stderr"] = "separate"
    _check_command(argv, template, parameters)
    argv, paths = _files(argv, given)
    document = make_document(argv, given)
    with connect() as client:
        if paths:
            document["inputs"] = [{"from": send_paths(client, paths, document["project"]).digest}]
        if template is not None:
            document = _from_template(client, template, parameters, document, given)
        hint = "" if given["cpu"] or template else CPU_HINT.format(Target(document["project"], document["name"]))
        if detach:
            sys.exit(_leave(client, _submit(client, document), as_json, hint))
        with Interrupts() as interrupts:  # before it is submitted: from then on there is something to cancel
            workload = _submit(client, document)
            if workload.state == "scheduled":  # it runs by itself, and has no output of its own
                sys.exit(_leave(client, workload, as_json, hint))
            program = argv[0] if argv and not paths else ""
            sys.exit(_attach(client, workload, interrupts, as_json, program, hint))


def _files(argv: tuple[str, ...], given: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Path]]:
    """What is sent, by its path in the work directory, and the command that runs there."""
    paths = sent_places(given["sent"])
    if given["workdir"] is not None:
        return argv, {"": Path(given["workdir"])} | paths
    script = None if given["no_send"] else find_script(argv)
    if script is None:
        return argv, paths
    given["name"] = given["name"] or _made_name(str(script.path))
    if script.to not in paths:
        echo_err(f"{script.path} of this machine is sent; --no-send switches that off")
    return tuple(script.argv), {script.to: script.path} | paths


def _check_command(argv: tuple[str, ...], template: TemplateName | None, parameters: tuple[str, ...]) -> None:
    if template is None and parameters:
        raise click.UsageError("-P is for a template: give --template NAME")
    if template is None and not argv:
        raise click.UsageError("there is no command: roost run -- COMMAND, or roost run --template NAME")
    if template is not None and argv:
        raise click.UsageError(f"--template {template.name} has a command of its own; leave out {argv[0]!r:.60}")


def _from_template(
    client: Client, template: TemplateName, parameters: tuple[str, ...], document: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """The document with a template in place of a command, and of other fields only those that are given."""
    found, block = template_block(client, template, document["project"], parameters)
    is_given = {"command": False, "resources": bool(document["resources"]), "count": given["count"] is not None}
    fields = {name: value for name, value in document.items() if is_given.get(name, True)}
    if "stderr" in found.workload:
        fields.pop("stderr", None)
    return {**fields, "name": given["name"] or _made_name(template.name), "template": block}


def _submit(client: Client, document: dict[str, Any]) -> WorkloadView:
    workload = client.workloads.submit(document)
    warn_unenforced(workload)
    return workload


def make_document(argv: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    amounts = {name: given[name] for name in ("cpu", "memory", "disk", "gpu") if given[name] is not None}
    amounts |= given["resources"]
    placement = {name: given[name] for name in ("pool", "strategy") if given[name]}
    if given["require"]:
        placement["require"] = list(given["require"])
    document: dict[str, Any] = {
        "name": given["name"] or (_made_name(argv[0]) if argv else ""),
        "project": given["project"],
        "command": list(argv),
        "resources": amounts,
        "count": 1 if given["count"] is None else given["count"],
    }
    optional = {
        "env": dict(_variable(variable) for variable in given["variables"]),
        "placement": placement,
        **{name: given[name] for name in ("timeout", "queue_timeout", "grace", "priority", "retries", "stderr")},
        "fenced": False if given["no_fenced"] else None,
        "outputs": list(given["outputs"]),
    }
    return document | {name: value for name, value in optional.items() if value not in (None, {}, [])}


def has_separate_stderr() -> bool:
    """Whether stdout and stderr of this process are two different files, pipes or terminals. A closed one is."""
    if sys.stdout is None or sys.stderr is None:
        return True
    try:
        found = [os.fstat(stream.fileno()) for stream in (sys.stdout, sys.stderr)]
    except OSError:  # streams without a file, as in a test
        return False
    out, err = [(item.st_dev, item.st_ino, item.st_rdev) for item in found]
    return out != err


def exit_code_of(ending: EndingView) -> int:
    """The code of the job; 128 + N for signals and 124 for timeouts, as in a shell; 1 for other failures."""
    if ending.state == "succeeded":
        return 0
    if ending.state == "timed_out":
        return TIMED_OUT
    if ending.state == "rejected":
        return NOT_PLACED
    if ending.signal:
        return SIGNAL_BASE + ending.signal
    return ending.exit_code or FAILED


def _leave(client: Client, workload: WorkloadView, as_json: bool, cpu_hint: str) -> int:
    if as_json:
        print_json(workload)
    else:
        click.echo(str(Target(workload.project, workload.name)))
    if workload.state != "queued":
        return NOT_PLACED if workload.state == "rejected" else 0
    why = explain(client, workload.project, workload.name)
    for reason in _reasons(why, cpu_hint):
        echo_err(reason)
    return NOT_PLACED if why.code in BLOCKED_CODES else 0


def _attach(
    client: Client, workload: WorkloadView, interrupts: Interrupts, as_json: bool, program: str, cpu_hint: str
) -> int:
    """Follow to the end; the exit code is the first instance's that did not succeed."""
    targets = [Target(workload.project, workload.name, index) for index in range(workload.count)]
    kind = JsonSink if as_json else LogSink if workload.count == 1 else PrefixSink
    if as_json:
        print_json_line({"event": "submitted", "workload": workload})
    interrupts.patience = 2
    watcher = Watcher(
        workload.name,
        interrupts,
        cancel=lambda: client.workloads.cancel(workload.project, workload.name),
        reasons=lambda: _reasons(explain(client, workload.project, workload.name), cpu_hint),
    )
    try:
        endings = follow_all(client, targets, kind, attempt=1, tick=watcher.tick, wake_fd=interrupts.fd)
    except BrokenPipeError:
        client.workloads.cancel(workload.project, workload.name)  # stdout or stderr is closed
        raise
    if watcher.left:
        echo_err(f"left; `roost wait {workload.name}` waits until it has stopped")
        return SIGNAL_BASE + interrupts.last
    bad = [(target, ending) for target, ending in sorted(endings.items(), key=lambda ending: ending[0].index or 0)
           if ending.state != "succeeded"]  # fmt: skip
    for target, ending in bad[:5]:
        if ending.exit_code is None or workload.count > 1:
            echo_err(f"{target} is {ending.state}: {ending.message}")
    if any(ending.exit_code is None and not ending.signal for _, ending in bad) and os.path.isfile(program):
        echo_err(f"{program} is a file of this machine, which was not sent: name it with --send, or a path of the node")
    if not as_json:
        report_kept(Target(workload.project, workload.name), (ending.outputs for ending in endings.values()))
    if interrupts.count:
        return SIGNAL_BASE + interrupts.last
    return exit_code_of(bad[0][1]) if bad else 0


def _reasons(why: WhyView, cpu_hint: str) -> list[str]:
    if why.code not in (*BLOCKED_CODES, UNKNOWN):
        return []
    return [why.message, cpu_hint] if cpu_hint and why.code == "insufficient_resources" else [why.message]


def _made_name(program: str) -> str:
    base = "".join(
        character if character.isascii() and character.isalnum() else "-" for character in os.path.basename(program)
    )
    return f"{base.strip('-')[:NAME_LENGTH_MAX].strip('-') or 'run'}-{os.urandom(SUFFIX_BYTES).hex()}"


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if separator:
        return name, value
    if name not in os.environ:
        raise click.UsageError(f"--env {name}: there is no such variable here; give it a value with {name}=...")
    return name, os.environ[name]
