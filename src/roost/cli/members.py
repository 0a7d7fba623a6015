"""roost members: persons and their roles in projects."""

from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, print_json, print_table, say
from roost.cli.session import connect, json_option, project_option
from roost.cli.tokens import ROLES

if TYPE_CHECKING:
    from roost.client.access import Member

HEADER = ("PROJECT", "MEMBER", "ROLE", "SINCE", "BY")
EVERYWHERE = "*"


@click.group(
    epilog="""\b
Examples:
  roost members list --project web
  roost members set ann@example.com --role submitter --project web
  roost members remove ann@example.com --project web
\b
Next: they come in with `roost login`; docs/access.md says what each role may do.
"""
)
def members() -> None:
    """Who has which role in a project, or everywhere (--project '*').

    A member is what the issuer of identities calls a person: an e-mail address, if the server is not told otherwise.
    """


@members.command(
    "list",
    epilog="""\b
Examples:
  roost members list --project web
  roost members list --project '*'        those with a role everywhere
\b
Next: `roost members set` and `roost members remove`.
""",
)
@project_option
@json_option
def list_(project: str, as_json: bool) -> None:
    """List the persons with a role in a project."""
    with connect() as client:
        found = client.members(project)
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(member) for member in found])
    if not found:
        say(f"{_where(project)} nobody has a role; `roost members set WHO --role ROLE` gives one")


@members.command(
    "set",
    epilog="""\b
Examples:
  roost members set ann@example.com --role submitter --project web
  roost members set ops@example.com --role operator --project '*'
\b
Next: `roost members list`. A role takes the place of the one before, at once.
""",
)
@click.argument("subject", metavar="WHO")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What they may do: docs/access.md.")
@project_option
@json_option
def set_(subject: str, role: str, project: str, as_json: bool) -> None:
    """Give a person a role in a project."""
    with connect() as client:
        member = client.set_member(project, subject, role)
    if as_json:
        print_json(member)
    else:
        say(f"{member.subject} is {member.role} {_where(member.project)}")


@members.command(
    epilog="""\b
Examples:
  roost members remove ann@example.com --project web
\b
Next: `roost tokens` shows the tokens that they have made, which stay.
"""
)
@click.argument("subject", metavar="WHO")
@project_option
@json_option
def remove(subject: str, project: str, as_json: bool) -> None:
    """Take a person's role in a project away, at once."""
    with connect() as client:
        client.remove_member(project, subject)
    if as_json:
        print_json({"project": project, "subject": subject})
    else:
        say(f"{subject} has no role {_where(project)} any more")


def _row(member: "Member") -> tuple[str, ...]:
    return member.project, member.subject, member.role, ago(member.set_ms), member.set_by


def _where(project: str) -> str:
    return "everywhere" if project == EVERYWHERE else f"in project {project}"
