"""Who may do what: roles, and what is kept of tokens and members."""

import re

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.spec.names import check_name

ROLES = ("viewer", "submitter", "operator", "admin")  # each may do what those before it may
RANKS = {role: rank for rank, role in enumerate(ROLES, start=1)}  # 0: none
VIEWER, SUBMITTER, OPERATOR, ADMIN = RANKS.values()
EVERYWHERE = "*"  # in place of a project: all of them, and what belongs to none

_SUBJECT = re.compile(r"[!-.0-~]+")  # printable ASCII without space, and without the slash after a project


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of an API token, under its name. Of its secret only a digest."""

    role: str
    projects: tuple[str, ...]  # or EVERYWHERE alone
    digest: bytes
    created_ms: int
    created_by: str
    lifetime_ms: int = 0  # 0: it never expires
    rotated_ms: int = 0  # when it got the secret it has now; 0: when it was created
    old_digest: bytes = b""  # of the secret before this one, good until
    old_until_ms: int = 0
    used_ms: int = 0  # written once an hour at most

    @property
    def expires_ms(self) -> int:
        """When it ends; 0: never."""
        return (self.rotated_ms or self.created_ms) + self.lifetime_ms if self.lifetime_ms else 0


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a person in a project, under PROJECT/SUBJECT."""

    role: str
    set_ms: int
    set_by: str


def check_role(role: str, path: str) -> int:
    if role not in RANKS:
        raise Invalid(path, f"a role is {', '.join(ROLES[:-1])} or {ROLES[-1]}, not {role!r:.60}")
    return RANKS[role]


def check_projects(projects: tuple[str, ...], path: str) -> None:
    if not projects:
        raise Invalid(path, f"name at least one project, or {EVERYWHERE} for all of them")
    if len(projects) > limits.TOKEN_PROJECTS_MAX:
        raise Invalid(path, f"a token is for at most {limits.TOKEN_PROJECTS_MAX} projects, not {len(projects):,}")
    if EVERYWHERE in projects and len(projects) > 1:
        raise Invalid(path, f"{EVERYWHERE} stands for all projects; name no other beside it")
    for index, project in enumerate(projects):
        check_place(project, f"{path}[{index}]")
        if project in projects[:index]:
            raise Invalid(f"{path}[{index}]", f"{project} is there twice")


def check_place(project: str, path: str) -> None:
    if project != EVERYWHERE:
        check_name(project, path)


def subject_of(text: str, path: str) -> str:
    """A person as its issuer calls it. An e-mail address is the same in capitals and in small letters."""
    if len(text) > limits.SUBJECT_LENGTH_MAX:
        raise Invalid(path, f"a subject may have {limits.SUBJECT_LENGTH_MAX} characters; this one has {len(text):,}")
    if _SUBJECT.fullmatch(text) is None:
        raise Invalid(path, "a subject is an e-mail address, or printable ASCII characters without spaces and slashes")
    return text.lower() if "@" in text else text
