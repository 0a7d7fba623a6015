"""How runs of pipelines look over the API."""

from typing import Any

import msgspec

from roost.schema.work import SubmittedView


class PipelineStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pipeline to run, as in a file, and what is given with it."""

    pipeline: dict[str, Any]
    variables: dict[str, str] = {}  # of all actions; they override those of the file
    only: list[str] = []  # these actions and their dependencies; none: all
    retention: str = ""  # of records and logs, of actions that have none of their own
    run: str = ""  # its ID; none: the server makes one. With one, a request that is sent again makes no second run


class ActionView(msgspec.Struct, frozen=True):
    """An action of a run that was started."""

    action: str
    needs: dict[str, str]  # the workloads of the actions that it needs, and how far they must have come
    services: dict[str, str]  # its services by name: their workloads, which end with it
    workload: SubmittedView


class StartedRun(msgspec.Struct, frozen=True):
    """A run of a pipeline that was started: all of its actions, each after those that it needs."""

    project: str
    pipeline: str
    run: str
    name: str  # PIPELINE-RUN: the names of its workloads begin so
    since: int  # a revision from before it: changes after it are those of the run
    actions: list[ActionView]
