"""The description of the API: it names every route, and nothing that fits or does not fit it breaks the server."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from litestar.routes import HTTPRoute
from schemathesis import Case
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from roost.core.state import Settings
from roost.server.history import History
from roost.server.watch import Watch
from roost.stores.memory import MemoryStore
from tests.server.house import TOKEN, House, house, over_http

EXAMPLES = 15  # per operation and request: the whole stays below a minute
ENDLESS = ["changes", "follow_log", "follow_events"]  # streams; their questions are tested beside what they tell

AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}


class Standing(threading.Thread):
    """A house that stands in a thread of its own, because schemathesis asks without a loop."""

    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.url = ""
        self.made: House | None = None
        self._ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Event | None = None

    def run(self) -> None:
        asyncio.run(self._stand())

    async def _stand(self) -> None:
        self.loop, self._leaving = asyncio.get_running_loop(), asyncio.Event()
        with tempfile.TemporaryDirectory() as folder:
            await self._live(History(Path(folder), Settings()))

    async def _live(self, history: History) -> None:
        assert self._leaving is not None
        async with house(history=history, **self.settings) as made, over_http(made) as client:
            self.made, self.url = made, str(client.base_url).rstrip("/")
            await self.furnish(made)
            self._ready.set()
            await self._leaving.wait()

    async def furnish(self, made: House) -> None:
        """What there is to ask about."""
        await made.agent(cpu=8_000)
        await made.submit("job", count=3)
        kept = {"name": "kept", "project": "default", "nodes": ["n1"], "start": "1h"}
        await made.post("/v1/reservations", kept, expect=201)

    def __enter__(self) -> "Standing":
        self.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.loop is not None and self._leaving is not None
        self.loop.call_soon_threadsafe(self._leaving.set)
        self.join(20)


@pytest.fixture(scope="module")
def standing() -> Iterator[Standing]:
    with Standing() as stands:
        yield stands


async def described() -> dict[str, Any]:
    """The description as a client reads it."""
    made = House(MemoryStore(), Settings(), Watch())
    answer = await made.client.get("/schema/openapi.json")
    again = await made.client.get("/schema/openapi.json")
    assert answer.status_code == 200 and answer.content == again.content
    description: dict[str, Any] = answer.json()
    return description


DESCRIPTION = asyncio.run(described())
schema = schemathesis.openapi.from_dict(DESCRIPTION).exclude(operation_id=ENDLESS)


KNOWN = {"project": "default", "name": "job", "node": "n1", "index": 0, "pool": "default", "reservation": "kept",
         "token": "robot", "subject": "ann@example.com", "serial": 1}  # fmt: skip


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
def test_nothing_breaks_the_server(case: Case, standing: Standing) -> None:
    if case.path_parameters and case.meta and case.meta.generation.mode.is_positive and len(str(case.query)) % 3:
        case.path_parameters.update({name: KNOWN[name] for name in case.path_parameters})  # something that exists
    # What fits may still be a conflict; and tokens have a test of their own (the token here is not one of the case).
    case.call_and_validate(
        base_url=standing.url, headers=AUTHORIZED, excluded_checks=[positive_data_acceptance, ignored_auth]
    )
    assert standing.made is not None and standing.made.engine.ready


def test_every_route_is_described(standing: Standing) -> None:
    assert standing.made is not None
    routes = [route for route in standing.made.api.routes if isinstance(route, HTTPRoute)]
    served = {
        (route.path_format, method)
        for route in routes
        for method in route.methods - {"OPTIONS"}
        if not route.path.startswith("/schema")
    }
    told = {
        (path, method.upper()) for path, item in DESCRIPTION["paths"].items() for method in item
    }  # fmt: skip
    assert served == told


def test_the_description_is_complete() -> None:
    raw = DESCRIPTION
    assert raw["openapi"].startswith("3.1")
    parts = raw["components"]["schemas"]
    assert parts["Document"]["required"] == ["name"] and parts["Document"]["additionalProperties"] is False
    for path, item in raw["paths"].items():
        for method, operation in item.items():
            assert operation["summary"] and operation["operationId"], (method, path)
            for status, answer in operation["responses"].items():
                if status.startswith(("4", "5")):
                    schema_of_answer = answer["content"]["application/json"]["schema"]
                    assert schema_of_answer == {"$ref": "#/components/schemas/ErrorView"}, (method, path, status)
    submit = raw["paths"]["/v1/workloads"]["post"]["requestBody"]["content"]
    assert set(submit) == {"application/json", "application/yaml"}
    assert submit["application/json"]["schema"] == {"$ref": "#/components/schemas/Document"}
