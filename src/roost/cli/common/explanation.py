"""Why submitted work is pending, for commands that report it on the way: a failed explanation never ends them."""

import msgspec

from roost.cli.common.targets import Target
from roost.client import Client
from roost.client.errors import ApiError, Unreachable
from roost.schema.why import WhyView

# Codes of instances that stay pending until an operator or other work makes room for them.
BLOCKED_CODES = ("no_nodes", "insufficient_resources", "quota_exceeded", "unsatisfiable", "maintenance")
UNKNOWN = "unknown"  # the server did not answer


def explain(client: Client, project: str, name: str) -> WhyView:
    """Why a workload is pending. An explanation that fails ends nothing: its code is `unknown` then."""
    try:
        return client.workloads.why(project, name, advice=False)
    except (ApiError, Unreachable, msgspec.MsgspecError) as error:
        message = f"the reason why {Target(project, name)} is pending is not known now: {error}"
        return WhyView(instance=f"{project}/{name}", state="queued", message=message, code=UNKNOWN)


def pending_reasons(client: Client, project: str, name: str, codes: tuple[str, ...] = BLOCKED_CODES) -> list[str]:
    """Why a workload is pending, if the reason has one of these codes or is not known."""
    why = explain(client, project, name)
    return [why.message] if why.code in (*codes, UNKNOWN) else []
