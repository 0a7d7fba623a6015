"""roost projects: who asks, with which weight, within which quota, and what each holds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from roost.cli.output import amount, plain, print_json, print_table, say
from roost.cli.session import connect, json_option, pairs
from roost.client.errors import ApiError

if TYPE_CHECKING:
    from roost.client.client import Client
    from roost.client.setting_types import Project

HEADER = ("PROJECT", "WEIGHT", "SHARE", "WAITING", "HELD/QUOTA")
NO_LIMIT = "none"
NOT_FOUND = 404


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost projects
  roost projects set web --weight 2 --quota cpu=10 --quota instances=5
  roost projects unset web
\b
Next: `roost why NAME` says whether a workload waits for its quota; docs/queue.md has the rules.
""",
)
@json_option
@click.pass_context
def projects(ctx: click.Context, as_json: bool) -> None:
    """List projects: weight, share of the fleet, what each holds of its quota; set and unset them.

    SHARE is the largest part of the fleet that a project holds of any resource. When several want more than there is,
    the one with the smallest share for its weight goes first.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.projects()
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(project) for project in found])
    if not found:
        say("there are no projects yet; one begins with its first workload, or with `roost projects set NAME`")


@projects.command(
    "set",
    epilog="""\b
Examples:
  roost projects set web --weight 2                      twice the share of a project of weight 1
  roost projects set web --quota cpu=10 --quota memory=64GiB --quota instances=50
  roost projects set web --quota cpu=none                no limit for cpu any more
  roost projects set web --borrow                        beyond its quota, with what other quotas leave
  roost projects set web --count-only                    only look at the quota, do not enforce it
\b
What is not given stays as it is. What runs beyond a lower quota goes on.
\b
Next: `roost projects`.
""",
)
@click.argument("name", metavar="PROJECT")
@click.option("--weight", type=int, default=None, help="Its part when there is too little for all. [default: 1]")
@click.option("--quota", multiple=True, callback=pairs, metavar="NAME=AMOUNT",
              help="At most this much at once: cpu=10, memory=4GiB, gpu=2, instances=5, any resource; cpu=none: no "
              "limit.")  # fmt: skip
@click.option("--borrow/--no-borrow", default=None, help="May it use what other quotas leave?")
@click.option("--count-only/--enforce", "counted", default=None, help="Is the quota only looked at?")
@json_option
def set_(
    name: str, weight: int | None, quota: tuple[str, ...], borrow: bool | None, counted: bool | None, as_json: bool
) -> None:
    """Set weight and quota of a project."""
    given = dict(each.split("=", 1) for each in quota)
    if weight is None and not quota and borrow is None and counted is None:
        raise click.UsageError("say what to set: --weight, --quota, --borrow or --count-only")
    with connect() as client:
        known = _known(client, name)
        limits = _written(known.quota) if known else {}
        limits |= given
        project = client.set_project(
            name,
            weight=weight if weight is not None else known.weight if known else 1,
            quota={each: most for each, most in limits.items() if most != NO_LIMIT},
            borrow=borrow if borrow is not None else bool(known and known.borrow),
            counted=counted if counted is not None else bool(known and known.counted),
        )
    if as_json:
        print_json(project)
    else:
        say(f"project {project.name}: weight {project.weight}, quota {_quota_words(project)}")


@projects.command(
    epilog="""\b
Examples:
  roost projects unset web
\b
Next: `roost projects`. Its workloads stay; it has weight 1 and no quota from now on.
"""
)
@click.argument("name", metavar="PROJECT")
@json_option
def unset(name: str, as_json: bool) -> None:
    """Forget the settings of a project; its workloads stay."""
    with connect() as client:
        client.unset_project(name)
    if as_json:
        print_json({"name": name})
    else:
        say(f"project {name} has weight 1 and no quota")


def held_words(held: Mapping[str, int], quota: Mapping[str, int]) -> str:
    """`cpu 3/10, instances 3`: what is held, and of how much where there is a limit."""
    shown = []
    for name in sorted({*held, *quota}, key=lambda each: (each not in quota, each)):
        most = f"/{amount(name, quota[name])}" if name in quota else ""
        shown.append(f"{plain(name)} {amount(name, held.get(name, 0))}{most}")
    return ", ".join(shown) or "-"


def _row(project: "Project") -> tuple[str, ...]:
    share = f"{100 * project.share:.1f}%" + (f" of {plain(project.dominant)}" if project.dominant else "")
    words = held_words(project.held, project.quota)
    notes = [word for word, holds in (("may borrow", project.borrow), ("counted only", project.counted)) if holds]
    held = f"{words} ({', '.join(notes)})" if notes and project.quota else words
    return project.name, str(project.weight), share, str(project.waiting), held


def _quota_words(project: "Project") -> str:
    if not project.quota:
        return "none"
    words = ", ".join(f"{plain(name)} {amount(name, most)}" for name, most in project.quota.items())
    return words + (", may borrow" if project.borrow else "") + (", counted only" if project.counted else "")


def _known(client: "Client", name: str) -> "Project | None":
    try:
        return client.project(name)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _written(quota: Mapping[str, int]) -> dict[str, str]:
    """A quota as it is written: cpu_milli 1500 is cpu 1500m."""
    return {plain(name): f"{most}m" if name.endswith("_milli") else str(most) for name, most in quota.items()}
