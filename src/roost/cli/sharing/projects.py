"""roost projects: weights, quotas and allocation of projects."""

import click

from roost.cli.common.format import amount, ordered, plain
from roost.cli.common.options import pairs_option
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output, connect, deletion, existing, json_output, listing
from roost.client import Client
from roost.model.states import IsolationLevel
from roost.schema.projects import ProjectView

HEADER = ("PROJECT", "WEIGHT", "SHARE", "PENDING", "ALLOCATED/QUOTA")
NO_LIMIT = "none"


@listing("projects")
@client_output
def projects(client: Client) -> Output:
    """List projects: weight, share of the fleet, allocation and quota; set and unset them.

    SHARE is the dominant share: the largest fraction of the fleet that a project has allocated of any resource. When
    resources are short, the project with the smallest share for its weight is first.

    Examples:
      roost projects
      roost projects set web --weight 2 --quota cpu=10 --quota instances=5
      roost projects unset web

    Next: `roost why NAME` shows a quota that blocks a workload.
    """
    found = client.projects.list()
    empty = "there are no projects yet; one begins with its first workload, or with `roost projects set NAME`"
    return listed(found, HEADER, _row, empty)


@projects.command("set")
@click.argument("name", metavar="PROJECT")
@click.option("--weight", type=int, default=None, help="Weight of its fair share. [default: 1]")
@pairs_option(
    "--quota", metavar="NAME=AMOUNT",
    help="Maximum allocation: cpu=10, memory=4GiB, gpu=2, instances=5, files=1000, file_bytes=1TiB, any resource; "
         "cpu=none: no limit.",
)  # fmt: skip
@click.option("--borrow/--no-borrow", default=None, help="Allow use above the quota, of what all quotas leave free.")
@click.option(
    "--isolation", type=click.Choice([level.value for level in IsolationLevel]), default=None,
    help="Its processes run only on nodes that offer at least this. [default: none]",
)  # fmt: skip
@click.option(
    "--run-as", multiple=True, metavar="USER",
    help="User of nodes, or root, that its processes may have (run_as); repeatable. `none`: no user.",
)  # fmt: skip
@click.option("--count-only/--enforce", "counted", default=None, help="Only display the quota, or enforce it.")
@json_output
def set_(
    name: str, weight: int | None, quota: dict[str, str], borrow: bool | None, counted: bool | None,
    isolation: str | None, run_as: tuple[str, ...],
) -> Output:  # fmt: skip
    """Set weight, quota and isolation of a project.

    Examples:
      roost projects set web --weight 2                      twice the share of a project of weight 1
      roost projects set web --quota cpu=10 --quota memory=64GiB --quota instances=50
      roost projects set web --quota file_bytes=100GiB       inputs and outputs that are kept
      roost projects set web --quota cpu=none                remove the limit of cpu
      roost projects set web --borrow                        above its quota, with what all quotas leave free
      roost projects set web --count-only                    display the quota, do not enforce it
      roost projects set web --isolation sandbox             only nodes that run its processes in sandboxes
      roost projects set web --run-as builder                allow `run_as: builder`; this needs the role admin

    Other settings stay. Running work above a lower quota continues.

    Next: `roost projects`.
    """
    if not any((quota, isolation, run_as)) and weight is borrow is counted is None:
        raise click.UsageError("nothing to set: give --weight, --quota, --borrow, --count-only, --isolation, --run-as")
    with connect() as client:
        known = existing(lambda: client.projects.get(name))
        # A quota as it is written: cpu_milli 1500 is cpu 1500m.
        written = {plain(item): f"{most}m" if item.endswith("_milli") else str(most)
                   for item, most in (known.quota if known else {}).items()}  # fmt: skip
        limits = written | quota
        project = client.projects.set(
            name,
            weight=weight if weight is not None else known.weight if known else 1,
            quota={limit: most for limit, most in limits.items() if most != NO_LIMIT},
            borrow=borrow if borrow is not None else bool(known and known.borrow),
            counted=counted if counted is not None else bool(known and known.counted),
            isolation=isolation or (known.isolation if known else IsolationLevel.NONE),
            run_as=[user for user in run_as if user != NO_LIMIT] if run_as else known.run_as if known else [],
        )
    more = "".join(f"; {note}" for note in _notes(project))
    return Output(project, f"project {project.name}: weight {project.weight}, quota {_format_quota(project)}{more}")


deletion(
    projects, "unset", "PROJECT", "projects", "Remove the settings of a project; its workloads stay.",
    example="web", done="project {} has weight 1 and no quota",
    then="`roost projects`. Its workloads stay; it has weight 1 and no quota from now on.",
)  # fmt: skip


def _row(project: ProjectView) -> tuple[str, ...]:
    share = f"{100 * project.share:.1f}%" + (f" of {plain(project.dominant)}" if project.dominant else "")
    shown = []
    for name in sorted({*project.allocated, *project.quota}, key=lambda item: (item not in project.quota, item)):
        most = f"/{amount(name, project.quota[name])}" if name in project.quota else ""
        shown.append(f"{plain(name)} {amount(name, project.allocated.get(name, 0))}{most}")
    message = ", ".join(shown) or "-"
    flags = (("may borrow", project.borrow and project.quota), ("counted only", project.counted and project.quota))
    notes = [word for word, holds in flags if holds] + _notes(project)
    allocated = f"{message} ({', '.join(notes)})" if notes else message
    return project.name, str(project.weight), share, str(project.waiting), allocated


def _notes(project: ProjectView) -> list[str]:
    """What its processes may be on nodes."""
    isolated = [f"isolation {project.isolation}"] if project.isolation != IsolationLevel.NONE else []
    return isolated + ([f"may run as {', '.join(project.run_as)}"] if project.run_as else [])


def _format_quota(project: ProjectView) -> str:
    if not project.quota:
        return "none"
    message = ", ".join(f"{plain(name)} {amount(name, most)}" for name, most in ordered(project.quota))
    return message + (", may borrow" if project.borrow else "") + (", counted only" if project.counted else "")
