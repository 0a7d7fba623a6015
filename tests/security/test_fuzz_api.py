"""The API under nonsense, once per role: documented refusals, no crash, and whoever may only read changes nothing."""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from roost.server.api.permissions import PERMISSIONS, Where
from tests.security.gatehouse import LEASE_MS, caller
from tests.server.api.test_schema import KNOWN, Standing, schema

EXAMPLES = 2  # per operation, role and request; what admins may do is searched further in tests/server/api
SILENT = 1  # for those who are sent away before anything of the request is read
OPEN = {name for name, each in PERMISSIONS.items() if each.where is Where.OPEN}


class Role(NamedTuple):
    """Somebody who asks."""

    name: str
    role: str = ""  # none: what it shows is known to nobody
    project: str = ""
    reads_only: bool = False


ROLES = [
    Role("operator", "operator", "*"),
    Role("submitter", "submitter", "default"),
    Role("viewer", "viewer", "default", reads_only=True),
    Role("stranger", "viewer", "elsewhere", reads_only=True),
    Role("nobody", reads_only=True),
]


class Gatehouse(Standing):
    """A house with somebody of every role before its door, in which nothing happens by itself."""

    settings = {"lease_ms": LEASE_MS}

    def __init__(self) -> None:
        super().__init__()
        self.headers: dict[str, dict[str, str]] = {"nobody": {}}

    async def furnish(self, made: Any) -> None:
        await super().furnish(made)
        for each in ROLES:
            if each.role:
                self.headers[each.name] = (await caller(made, each.role, each.project)).headers

    def kept(self) -> Any:
        """What a request of somebody who may only read must leave as it is: everything."""
        return asyncio.run_coroutine_threadsafe(self._kept(), self.loop).result(10)

    async def _kept(self) -> Any:
        assert self.made is not None
        state = await self.made.engine.settled()
        return state.revision, {kind: dict(records) for kind, records in state.kept.items()}


@pytest.fixture(scope="module")
def standing() -> Iterator[Gatehouse]:
    with Gatehouse() as stands:
        yield stands


@pytest.mark.parametrize("who", ROLES, ids=lambda who: who.name)
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    deadline=None,
)
def test_nothing_breaks_the_server(case: Case, standing: Gatehouse, who: Role) -> None:
    name = case.operation.definition.raw["operationId"]
    if case.path_parameters and case.meta and case.meta.generation.mode.is_positive:
        case.path_parameters.update({key: KNOWN[key] for key in case.path_parameters})  # something that exists
    before = standing.kept() if who.reads_only else None
    answer = case.call_and_validate(
        base_url=standing.url, headers=standing.headers[who.name],
        excluded_checks=[positive_data_acceptance, ignored_auth],
    )  # fmt: skip
    assert answer.status_code < 500 or answer.status_code == 503 and name in ()
    if not who.role and name not in OPEN:
        assert answer.status_code in (401, 405)
    if who.reads_only and name not in OPEN:
        assert standing.kept() == before
    assert standing.made is not None and standing.made.engine.ready


def test_the_engine_still_decides(standing: Gatehouse) -> None:
    """After all of the above; with whatever a drain or a quota has left of the room."""
    assert standing.made is not None
    found = asyncio.run_coroutine_threadsafe(standing.made.submit("after", project="after"), standing.loop).result(10)
    assert found["name"] == "after"
