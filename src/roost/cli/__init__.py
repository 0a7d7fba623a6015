"""The command line. Each command is a file of its own, imported when it is used, so that all of them start fast."""

import os
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click

from roost import __version__
from roost.cli.common.exit_codes import explained
from roost.cli.common.help import HelpContext

# name: (module and attribute, its line in `roost --help`)
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "up": ("start.up:up", "Start a server and local nodes."),
        "server": ("start.server:server", "Start only the server."),
        "agent": ("start.agent:agent", "Make this machine a node."),
        "demo": ("start.demo:demo", "Watch Roost place work, lose a machine and recover, in under a minute."),
    },
    "Work": {
        "run": ("work.run:run", "Run a command on a node, stream its output, return its exit code."),
        "ci": ("ci.commands:ci", "Run pipelines of actions; list, show and retry their runs."),
        "apply": ("work.apply:apply", "Submit the workloads of a YAML or JSON file, or update them."),
        "templates": ("work.templates:templates", "List, apply, show and delete templates of workloads."),
        "rollback": ("work.rollback:rollback", "Roll back to an earlier version."),
        "promote": ("work.rollback:promote", "Promote the canaries of an update."),
        "plan": ("work.apply:plan", "Show what applying a file would do, without doing it."),
        "ps": ("work.show:ps", "List workloads."),
        "show": ("work.show:show", "Show one workload or instance, with its story."),
        "logs": ("work.logs:logs", "Print the logs of instances."),
        "result": ("work.result:result", "Print the JSON that runs have written as their result."),
        "outputs": ("files.outputs:outputs", "List the files that a workload left."),
        "get": ("files.outputs:get", "Fetch the files that a workload left."),
        "cp": ("files.copy:cp", "Copy files into or out of a running instance."),
        "exec": ("inside.exec:exec_", "Run a command inside a running instance."),
        "console": ("inside.console:console", "Attach to the serial console of a virtual machine."),
        "port-forward": ("inside.port_forward:port_forward", "Forward ports of this machine to a running instance."),
        "blobs": ("files.blobs:blobs", "List, send, fetch and delete files that have a name."),
        "vm": ("work.vm:vm", "List virtual machines; start, stop, pause, resume, reboot and reset them."),
        "services": ("work.services:services", "List addresses of services, and which replicas are ready."),
        "versions": ("work.rollback:versions", "List the versions of a workload, and what each changed."),
        "history": ("work.history:history", "List finished workloads."),
        "events": ("work.history:events", "List events, or follow them."),
        "why": ("work.why:why", "Explain why an instance is placed or pending."),
        "wait": ("work.wait:wait", "Wait until workloads are finished, started, running or ready."),
        "cancel": ("work.cancel:cancel", "Stop workloads or single instances."),
        "schedules": ("work.schedules:schedules", "List schedules and their next ticks; run one now."),
        "retry": ("work.cancel:retry", "Retry failed work."),
        "delete": ("work.cancel:delete", "Delete finished workloads with their logs."),
    },
    "Machines": {
        "nodes": ("machines.nodes:nodes", "List nodes; show one; remove one."),
        "join-tokens": ("machines.join_tokens:join_tokens", "List, create and revoke join tokens."),
        "drain": ("machines.drain:drain", "Drain a node, or show where its work would go."),
        "cordon": ("machines.nodes:cordon", "Cordon a node: it takes no new work; running work stays."),
        "uncordon": ("machines.nodes:uncordon", "Put a cordoned, drained or flaky node back into service."),
        "maintenance": ("machines.servers:maintenance", "Pause all placement and node loss for a while."),
        "status": ("machines.servers:status", "Show the status of the server."),
        "leader": ("machines.servers:leader", "Show the leader; transfer leadership."),
        "doctor": ("machines.doctor.command:doctor", "Check server, nodes, store and work; show what to do next."),
    },
    "Sharing": {
        "projects": ("sharing.projects:projects", "List projects; set their weights and quotas."),
        "usage": ("sharing.usage:usage", "Sum up what projects had and used."),
        "pools": ("sharing.pools:pools", "List pools; set them; mark one as failed or drain it."),
        "reserve": ("sharing.reservations:reserve", "Reserve nodes for one project."),
        "reservations": ("sharing.reservations:reservations", "List reservations; cancel one."),
    },
    "Access": {
        "login": ("access.login:login", "Log in with your organisation's identity."),
        "logout": ("access.login:logout", "Log out."),
        "whoami": ("access.login:whoami", "Show your principal and your roles."),
        "tokens": ("access.tokens:tokens", "List, create, rotate and revoke API tokens."),
        "members": ("access.members:members", "List, set and remove roles of users in projects."),
        "secrets": ("access.secrets:secrets", "Set, list and remove secrets of projects."),
        "audit": ("work.history:audit", "List changes with their principals, newest first."),
    },
    "Tools": {
        "hooks": ("tools.webhooks:hooks", "List, set, test and remove webhooks."),
        "sim": ("tools.sim:sim", "Try placements and faults in a simulated fleet."),
        "bench": ("tools.bench:bench", "Measure Roost on this machine."),
        "lab": ("tools.lab:lab", "Try this Roost under real faults."),
        "store": ("tools.store:store", "Copy, check, back up and restore the state."),
        "completion": ("common.completion:completion", "Print a completion script for your shell."),
    },
}
PLACES = {name: place for section in COMMANDS.values() for name, (place, _) in section.items()}
EPILOG = """\b
First steps:
  roost up                          in one terminal
  roost run -- echo hello           in another
  roost ps                          list workloads; then `roost why NAME`, `roost logs NAME`
"""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only when it is asked for."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in PLACES:
            return None
        module, _, attribute = PLACES[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"roost.cli.{module}"), attribute)
        _print_examples_last(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in PLACES and not args[0].startswith("-"):
            raise click.NoSuchCommand(args[0], possibilities=list(PLACES), ctx=ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with explained():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, message) for name, (_, message) in section.items()])


def _print_examples_last(command: click.Command) -> None:
    """Print the examples of a command and all that follows them in its docstring after its options, as written."""
    command.context_class = HelpContext
    help_text, examples, rest = cleandoc(command.help or "").partition("\n\nExamples:\n")
    if examples:
        command.help, paragraphs = help_text, f"Examples:\n{rest}".split("\n\n")
        command.epilog = "\n\n".join(f"\b\n{paragraph}" for paragraph in paragraphs)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _print_examples_last(inner)


@click.group(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, "--version", prog_name="roost")
def root() -> None:
    """Roost schedules work on machines, keeps it running, and explains every decision."""
    if os.environ.get("NO_COLOR"):
        click.get_current_context().color = False


def main() -> None:
    root(prog_name="roost")
