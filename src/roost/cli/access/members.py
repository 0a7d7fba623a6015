"""roost members: persons and their roles in projects."""

import click

from roost.cli.access.tokens import ROLES
from roost.cli.common.output import ago, print_list, print_result
from roost.cli.common.session import connect, json_option, listing, project_option
from roost.schema.access import MemberView

HEADER = ("PROJECT", "MEMBER", "ROLE", "SINCE", "BY")
EVERYWHERE = "*"


@listing("members")
@project_option
@json_option
def members(project: str, as_json: bool) -> None:
    """Manage roles of users in a project, or in all projects (--project '*').

    A member is the name of a user at the OpenID issuer: by default an e-mail address.

    Examples:
      roost members list --project web
      roost members set ann@example.com --role submitter --project web
      roost members remove ann@example.com --project web

    Next: users log in with `roost login`; docs/guides/access.md lists the roles.
    """
    with connect() as client:
        found = client.members.list(project)
    empty = f"no user has a role {_where(project)}; `roost members set WHO --role ROLE` gives one"
    print_list(found, as_json, HEADER, _row, empty)


@members.command("set")
@click.argument("subject", metavar="WHO")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role: docs/guides/access.md.")
@project_option
@json_option
def set_(subject: str, role: str, project: str, as_json: bool) -> None:
    """Give a user a role in a project.

    Examples:
      roost members set ann@example.com --role submitter --project web
      roost members set ops@example.com --role operator --project '*'

    Next: `roost members list`. The new role replaces the old one at once.
    """
    with connect() as client:
        member = client.members.set(project, subject, role=role)
    print_result(member, as_json, f"{member.subject} is {member.role} {_where(member.project)}")


@members.command()
@click.argument("subject", metavar="WHO")
@project_option
@json_option
def remove(subject: str, project: str, as_json: bool) -> None:
    """Remove the role of a user in a project, at once.

    Examples:
      roost members remove ann@example.com --project web

    Next: `roost tokens` lists the tokens that they created; these stay valid.
    """
    with connect() as client:
        client.members.delete(project, subject)
    print_result({"project": project, "subject": subject}, as_json, f"{subject} has no role {_where(project)} now")


def _row(member: MemberView) -> tuple[str, ...]:
    return member.project, member.subject, member.role, ago(member.set_ms), member.set_by


def _where(project: str) -> str:
    return "everywhere" if project == EVERYWHERE else f"in project {project}"
