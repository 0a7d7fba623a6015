"""The API under nonsense, from all callers: documented answers, no crash, and viewers change nothing."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, settings
from schemathesis import Case
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from roost.core.state.records import Settings
from roost.model.records.access import SUBMITTER
from roost.server.engine.questions import ANSWER_S
from roost.server.history.service import History
from roost.server.operations.permit import Scope
from roost.server.operations.table import BY_NAME
from tests.security.callers import LEASE_MS, caller
from tests.server.http.api.test_schema import DESCRIPTION
from tests.server.inprocess_server import TOKEN, InprocessServer, inprocess_server, over_http

EXAMPLES = 8  # per operation, beside those that are derived from its description
CALL_S_MAX = 2 * ANSWER_S  # the server answers earlier, if only that it is too busy
ASKED_BY_ALL = 2  # of these; an admin, who gets furthest, asks all
ENDLESS = ["changes", "follow_log", "follow_events"]  # streams; their questions are tested beside what they tell
KNOWN = {"project": "default", "name": "job", "node": "n1", "index": 0, "pool": "default", "reservation": "kept",
         "token": "robot", "subject": "ann@example.com", "serial": 1,
         "digest": f"sha256:{0:064x}", "copy": "0" * 32}  # fmt: skip
COVERAGE = HypothesisTestMode.COVERAGE  # every field missing, too long, of another type ...
COVERED_BY_OTHERS = ["submit_batch"]  # a list of what `submit` takes: 2,300 cases that are the same
# What fits may still be a conflict; and who may come in is tested beside this (the token is not one of the case).
CHECKS_LEFT_OUT = [positive_data_acceptance, ignored_auth]

SETTINGS = settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
OPERATIONS = sorted(
    operation["operationId"]
    for methods in DESCRIPTION["paths"].values()
    for operation in methods.values()
    if operation["operationId"] not in ENDLESS
)

schema = schemathesis.openapi.from_dict(DESCRIPTION)
rejection = schema.config.checks.negative_data_rejection
rejection.expected_statuses = [*rejection.expected_statuses, "413"]  # too large is as good a reason as any


class Role(NamedTuple):
    """A caller that asks."""

    name: str
    role: str = ""  # none: it has no token
    project: str = ""


ROLES = [
    Role("nobody"),
    Role("stranger", "viewer", "elsewhere"),
    Role("viewer", "viewer", "default"),
    Role("submitter", "submitter", "default"),
    Role("operator", "operator", "*"),
]


class Standing(threading.Thread):
    """A server that stands in a thread of its own, because schemathesis asks without a loop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.url = ""
        self.made: InprocessServer | None = None
        self.headers: dict[str, dict[str, str]] = {"nobody": {}, "admin": {"authorization": f"Bearer {TOKEN}"}}
        self.asked: dict[str, int] = {}  # operation -> how many examples were sent
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Event | None = None

    def run(self) -> None:
        asyncio.run(self._stand())

    async def _stand(self) -> None:
        self._loop, self._leaving = asyncio.get_running_loop(), asyncio.Event()
        with tempfile.TemporaryDirectory() as folder:
            await self._live(History(Path(folder), Settings()))

    async def _live(self, history: History) -> None:
        assert self._leaving is not None
        async with inprocess_server(history=history, lease_ms=LEASE_MS) as made, over_http(made) as client:
            self.made, self.url = made, str(client.base_url).rstrip("/")
            await made.agent(cpu=8_000)
            await made.submit("job", count=3)
            stored = {"name": "kept", "project": "default", "nodes": ["n1"], "start": "1h"}
            await made.post("/v1/reservations", stored, expect=201)
            for role in ROLES:
                if role.role:
                    self.headers[role.name] = (await caller(made, role.role, role.project)).headers
            self._ready.set()
            await self._leaving.wait()

    def kept(self) -> Any:
        """What a caller that may only read must leave as it is: everything."""
        return self.within(self._kept())

    async def _kept(self) -> Any:
        assert self.made is not None
        state = await self.made.engine.settled()
        return state.revision, {kind: dict(records) for kind, records in state.opaque_records.items()}

    def within(self, work: Any) -> Any:
        """The result of something that has to happen on the loop of the server."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def __enter__(self) -> "Standing":
        self.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._leaving is not None
        self._loop.call_soon_threadsafe(self._leaving.set)
        self.join(20)


@pytest.fixture(scope="module")
def standing() -> Iterator[Standing]:
    with Standing() as stands:
        yield stands


def may_change(operation: str, principal: Role) -> bool:
    """Whether an operation may change anything when this caller asks for it."""
    rank, scope, *_ = BY_NAME[operation]
    if scope is Scope.OPEN:
        return operation == "join"
    return rank >= SUBMITTER and principal.role in ("submitter", "operator")


def has_unsent_parameters(case: Case) -> bool:
    """An empty list is no parameter in a URL: a query that is invalid because of one arrives as a valid one."""
    return any(value in ([], {}) for value in (case.query or {}).values())


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_breaks_the_server(name: str, standing: Standing) -> None:
    # Made here: `schema.parametrize` makes the cases of all operations in every worker, before its first test.
    modes = [mode for mode in HypothesisTestMode if mode is not COVERAGE or name not in COVERED_BY_OTHERS]
    config = HypothesisTestConfig(schema.config, modes, SETTINGS)
    create_test(operation=schema.find_operation_by_id(name), test_func=ask, config=config)(standing=standing)


def ask(case: Case, standing: Standing) -> None:
    assume(not has_unsent_parameters(case))
    operation = case.operation.definition.raw["operationId"]
    if case.path_parameters and case.meta and case.meta.generation.mode.is_positive and len(str(case.query)) % 3:
        case.path_parameters.update({name: KNOWN[name] for name in case.path_parameters})  # something that exists
    standing.asked[operation] = standing.asked.get(operation, 0) + 1
    for principal in ROLES if standing.asked[operation] <= ASKED_BY_ALL else ():
        before = standing.kept()
        answer = case.call(base_url=standing.url, headers=standing.headers[principal.name], timeout=CALL_S_MAX)
        case.validate_response(answer, excluded_checks=CHECKS_LEFT_OUT)
        assert answer.status_code < 500, (principal, answer.text)
        if not principal.role and BY_NAME[operation].scope is not Scope.OPEN:
            assert answer.status_code == 401, (principal, answer.text)
        if not may_change(operation, principal):
            assert standing.kept() == before, principal
    case.call_and_validate(
        base_url=standing.url, headers=standing.headers["admin"], excluded_checks=CHECKS_LEFT_OUT, timeout=CALL_S_MAX
    )
    assert standing.made is not None and standing.made.engine.ready


def test_the_engine_still_decides(standing: Standing) -> None:
    assert standing.made is not None
    taken = standing.within(standing.made.submit("after", project="after"))
    assert taken["name"] == "after" and "after/after" in standing.made.engine.state.workloads
