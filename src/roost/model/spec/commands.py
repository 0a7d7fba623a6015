"""Commands, steps and variables of a workload document: what a process is started with."""

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.secret import FromSecret
from roost.model.spec.folded_lines import refuse_folded_step
from roost.model.spec.names import check_name, check_text

# What a `roost` in a run reads; all others that begin with ROOST_ tell a run about itself, and mark its processes.
CLIENT_VARIABLES = frozenset({"ROOST_URL", "ROOST_TOKEN", "ROOST_CA", "ROOST_CONFIG"})


class StepBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    run: str
    name: str = ""
    ignore_failure: bool = False


def check_step(step: str | StepBlock, path: str) -> None:
    block, here = (StepBlock(step), path) if isinstance(step, str) else (step, f"{path}.run")
    check_command(block.run, here)
    refuse_folded_step(block.run, here)
    check_text(block.name, f"{path}.name")


def check_command(line: str, path: str) -> None:
    if not line.strip():
        raise Invalid(path, "there is nothing to run here")
    check_argument(line, path)


def check_argument(text: str, path: str) -> None:
    if "\0" in text:
        raise Invalid(path, "a command cannot hold a NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(path, "this is not text that can be passed to a program (a lone surrogate)") from None
    if size > limits.COMMAND_BYTES_MAX:
        raise Invalid(path, f"a command may have {limits.COMMAND_BYTES_MAX} bytes; this one has {size}")


def check_variable(item: tuple[str, str | FromSecret], path: str) -> None:
    name, value = item
    if not name or "=" in name:
        raise Invalid(path, f"{name!r:.60} is not a name for a variable")
    field = f"{path}.{name:.60}"
    if name.startswith("ROOST_") and name not in CLIENT_VARIABLES:
        raise Invalid(field, "variables that begin with ROOST_ are set by the agent; choose another name")
    check_argument(name, field)
    if isinstance(value, str):
        check_argument(value, field)
        return
    check_name(value.secret, f"{field}.secret")
    if name == "PATH":
        raise Invalid(field, "PATH cannot be secret: error messages show it when a program is missing")
