"""Plans: what submitting workloads would do, without doing it."""

from typing import Any

import msgspec
from litestar import Request, post

from roost.core.plan import make_plan
from roost.core.step import step
from roost.model.document import Document
from roost.model.events import Submit
from roost.model.plan import Pending, Plan
from roost.server.api.bodies import taking
from roost.server.api.doors import doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import permit_wanted, principal_of
from roost.server.api.secrets import require_secrets
from roost.server.api.workloads import BATCH_MAX, plans_of, read_batch
from roost.server.auth_veil import Veil


class PlacingView(msgspec.Struct, frozen=True):
    """Where an instance would go, and which devices and ports it would get."""

    instance: str
    node: str
    strategy: str
    devices: list[int]
    ports: list[int]


class ReasonView(msgspec.Struct, frozen=True):
    """One reason to wait, and for how many nodes it holds; 0: it is not about nodes."""

    code: str
    words: str
    nodes: int


class PendingView(msgspec.Struct, frozen=True):
    """How many instances of a workload would wait (or be rejected), and why: a code as `why` has it."""

    workload: str
    count: int
    code: str
    words: str
    blockers: list[ReasonView]


class StoppingView(msgspec.Struct, frozen=True):
    """An instance that would be stopped for them."""

    instance: str
    node: str
    words: str


class PlanView(msgspec.Struct, frozen=True):
    """What would happen. Submit the same documents with `token` as `plan`: exactly this is done, or nothing."""

    token: str
    revision: int
    changes: bool
    created: list[str]
    changed: list[str]
    unchanged: list[str]
    placed: list[PlacingView]
    pending: list[PendingView]
    stopped: list[StoppingView]


@post(
    "/v1/plans",
    operation_id="plan",
    operation_class=taking(Document, many=BATCH_MAX),
    status_code=200,
    responses=refusals(403, 409, 413, 415, 422, 503),
)
async def plan(request: Request[Any, Any, Any]) -> PlanView:
    """Say what submitting workloads would do: who goes where, who waits and why, who is stopped. Nothing is done."""
    engine = doors_of(request).engine
    wanted = await read_batch(request)
    permit_wanted(principal_of(request), wanted)
    await require_secrets(request, wanted, many=True)
    state = await engine.settled()
    now = engine.clock.now_ms()
    made = make_plan(step, state, Submit(0, wanted, same_ok=True), now)
    return _view(made, plans_of(request).keep(made, wanted, now), state.revision, veil_of(request))


def _view(made: Plan, token: str, revision: int, veil: Veil) -> PlanView:
    placed = [
        PlacingView(each.instance, each.node, each.strategy, list(each.devices), list(each.ports))
        for each in made.placed
    ]
    stopped = [StoppingView(veil.key(each.instance), each.node, veil.words(each.words)) for each in made.stopped]
    pending = [_pending(each, veil) for each in made.pending]
    created, changed = list(made.created), list(made.changed)
    will_change = bool(created or changed)
    return PlanView(token, revision, will_change, created, changed, list(made.unchanged), placed, pending, stopped)


def _pending(pending: Pending, veil: Veil) -> PendingView:
    blockers = [ReasonView(each.code, veil.words(each.words), each.nodes) for each in pending.blockers]
    return PendingView(pending.workload, pending.count, pending.code, veil.words(pending.words), blockers)
