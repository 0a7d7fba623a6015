"""What a run does: a command or steps, or the program of an image."""

from typing import Protocol

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.spec.commands import StepBlock, check_argument, check_command, check_step
from roost.model.spec.placement import between
from roost.model.spec.problems import check_each, indexed
from roost.model.states import WorkloadKind


class Work(Protocol):
    """The fields of a document that matter here."""

    kind: WorkloadKind
    image: str
    command: str | list[str]
    steps: list[str | StepBlock] | None


def check_work(document: Work, path: str) -> None:
    if document.steps is not None and document.command:
        raise Invalid(field(path, "command"), "give either command or steps, not both")
    if document.steps is not None:
        here = field(path, "steps")
        between(len(document.steps), 1, limits.STEPS_MAX, here, "steps")
        if document.kind != WorkloadKind.JOB:
            raise Invalid(here, f"steps belong to a job; a {document.kind} has a command")
        check_each(check_step, indexed(document.steps, here))
        return
    if not document.command and not document.image and document.kind != WorkloadKind.VM:
        raise Invalid(field(path, "steps"), "a workload needs steps or a command to run")
    here = field(path, "command")
    if isinstance(document.command, str):
        if document.command:
            check_command(document.command, here)
        return
    between(len(document.command), 1, limits.ARGUMENTS_MAX, here, "arguments")
    if not document.command[0]:
        raise Invalid(f"{here}[0]", "the program to run has no name")
    check_each(check_argument, indexed(document.command, here))


def field(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
