"""roost members: persons and their roles in projects."""

import click

from roost.cli.access.tokens import role_option
from roost.cli.common.format import ago
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output, listing
from roost.client import Client
from roost.schema.access.roles import MemberView

HEADER = ("PROJECT", "MEMBER", "ROLE", "SINCE", "BY")


@listing("members")
@project_option
@client_output
def members(client: Client, project: str) -> Output:
    """Manage roles of users in a project, or in all projects (--project '*').

    A member is the name of a user at the OpenID issuer: by default an e-mail address.

    Examples:
      roost members list --project web
      roost members set ann@example.com --role submitter --project web
      roost members remove ann@example.com --project web

    Next: users log in with `roost login`; `roost members set --help` explains the roles.
    """
    found = client.members.list(project)
    empty = f"no user has a role {_where(project)}; `roost members set WHO --role ROLE` gives one"
    return listed(found, HEADER, _row, empty)


@members.command("set")
@click.argument("subject", metavar="WHO")
@role_option
@project_option
@client_output
def set_(client: Client, subject: str, role: str, project: str) -> Output:
    """Give a user a role in a project.

    Examples:
      roost members set ann@example.com --role submitter --project web
      roost members set ops@example.com --role operator --project '*'

    Next: `roost members list`. The new role replaces the old one at once.
    """
    member = client.members.set(project, subject, role=role)
    return Output(member, f"{member.subject} is {member.role} {_where(member.project)}")


@members.command()
@click.argument("subject", metavar="WHO")
@project_option
@client_output
def remove(client: Client, subject: str, project: str) -> Output:
    """Remove the role of a user in a project, at once.

    Examples:
      roost members remove ann@example.com --project web

    Next: `roost tokens` lists the tokens that they created; these stay valid.
    """
    client.members.delete(project, subject)
    return Output({"project": project, "subject": subject}, f"{subject} has no role {_where(project)} now")


def _row(member: MemberView) -> tuple[str, ...]:
    return member.project, member.subject, member.role, ago(member.set_ms), member.set_by


def _where(project: str) -> str:
    return "everywhere" if project == "*" else f"in project {project}"
