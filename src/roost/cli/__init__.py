"""The command line. Each command is a file of its own, imported when it is used, so that all of them start fast."""

from importlib import import_module
from typing import Any

import click

from roost import __version__
from roost.cli.outcome import explained

# name: (module and attribute, what `roost --help` says of it)
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "up": ("up:up", "Start a server and local nodes: everything in one command."),
        "server": ("server:server", "Start only the server."),
        "agent": ("agent:agent", "Make this machine a node of a server."),
        "demo": ("demo:demo", "Watch Roost place work, lose a machine and recover, in under a minute."),
    },
    "Work": {
        "run": ("run:run", "Run a command somewhere, stream its output, return its exit code."),
        "ci": ("ci:ci", "Run pipelines of actions; list, look at and retry their runs."),
        "apply": ("apply:apply", "Submit the workloads of a YAML or JSON file, or update them."),
        "rollback": ("rollback:rollback", "Go back to an earlier version."),
        "promote": ("promote:promote", "Let all replicas follow the canaries of an update."),
        "plan": ("plan:plan", "Say what applying a file would do, without doing it."),
        "ps": ("ps:ps", "List workloads."),
        "show": ("show:show", "Show one workload or instance, with its story."),
        "logs": ("logs:logs", "Print what instances wrote."),
        "services": ("services:services", "Say where services are, and which replicas are ready."),
        "history": ("history:history", "List what is over, however long ago; and the versions of what lives."),
        "events": ("events:events", "Say what happened, or follow it."),
        "why": ("why:why", "Say why an instance is where it is, or why it waits."),
        "wait": ("wait:wait", "Wait until workloads are finished or running."),
        "cancel": ("cancel:cancel", "Stop workloads or single instances."),
        "schedules": ("schedules:schedules", "List what runs again and again, and when; run one now."),
        "retry": ("retry:retry", "Run again what failed."),
    },
    "Machines": {
        "nodes": ("nodes:nodes", "List nodes; look at one; remove one that is gone."),
        "join-tokens": ("join:join_tokens", "List, create and revoke tokens with which machines join."),
        "drain": ("drain:drain", "Take a node out of service, or say where everything there would go."),
        "cordon": ("cordon:cordon", "Keep new work from a node; what runs there stays."),
        "resume": ("cordon:resume", "Put a node back into service."),
        "maintenance": ("maintenance:maintenance", "Hold everything where it is for a while."),
        "status": ("status:status", "Say how the server is doing."),
        "leader": ("leader:leader", "Say which server leads; hand the lead over."),
        "doctor": ("doctor:doctor", "Say what is wrong around the server, and what to do next."),
    },
    "Sharing": {
        "projects": ("projects:projects", "List projects; set their weights and quotas."),
        "pools": ("pools:pools", "List pools; set what their nodes have in common; fail or empty one."),
        "reserve": ("reservations:reserve", "Keep nodes for one project."),
        "reservations": ("reservations:reservations", "List reservations; cancel one."),
    },
    "Access": {
        "login": ("login:login", "Log in with your organisation's identity."),
        "logout": ("login:logout", "Forget that login."),
        "whoami": ("login:whoami", "Say who you are to the server, and what you may do."),
        "tokens": ("tokens:tokens", "List, create, rotate and revoke API tokens."),
        "members": ("members:members", "List, set and remove persons' roles in projects."),
        "secrets": ("secrets:secrets", "Set, list and remove secrets of projects."),
        "audit": ("audit:audit", "Say who changed what, newest first."),
    },
    "Tools": {
        "hooks": ("hooks:hooks", "List, set, try and remove webhooks on changes of state."),
        "sim": ("sim:sim", "Try placements and faults in a simulated fleet."),
        "bench": ("bench:bench", "Measure Roost on this machine."),
        "store": ("store:store", "Copy, check, back up and restore where the state is kept."),
        "completion": ("completion:completion", "Print a completion script for your shell."),
    },
}
EPILOG = """\b
First steps:
  roost up                          in one terminal
  roost run -- echo hello           in another
  roost ps                          what there is; then `roost why NAME`, `roost logs NAME`
"""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in COMMANDS.values():
            if cmd_name in section:
                module, _, attribute = section[cmd_name][0].partition(":")
                command: click.Command = getattr(import_module(f"roost.cli.{module}"), attribute)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            raise click.NoSuchCommand(args[0], possibilities=known, ctx=ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with explained():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, words) for name, (_, words) in section.items()])


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "--version", prog_name="roost")
def root() -> None:
    """Roost places work on machines, keeps it running, and can always say why."""


def main() -> None:
    """The console script."""
    root(prog_name="roost")
