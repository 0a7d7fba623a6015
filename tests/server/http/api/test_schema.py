"""The description of the API: it names every route, and is complete. What fits it is tried in tests/security."""

import asyncio
from typing import Any

from litestar.routes import HTTPRoute

from roost.core.state.records import Settings
from roost.server.feed.change_log import Watch
from roost.stores.memory import MemoryStore
from tests.server.inprocess_server import InprocessServer


async def described() -> dict[str, Any]:
    """The description as a client reads it."""
    made = InprocessServer(MemoryStore(), Settings(), Watch())
    answer = await made.client.get("/schema/openapi.json")
    again = await made.client.get("/schema/openapi.json")
    assert answer.status_code == 200 and answer.content == again.content
    description: dict[str, Any] = answer.json()
    return description


DESCRIPTION = asyncio.run(described())


async def test_every_route_is_described() -> None:
    made = InprocessServer(MemoryStore(), Settings(), Watch())
    routes = [route for route in made.api.routes if isinstance(route, HTTPRoute)]
    served = {
        (route.path_format, method)
        for route in routes
        for method in route.methods - {"OPTIONS"}
        if not route.path.startswith("/schema")
    }
    answer = {
        (path, method.upper()) for path, item in DESCRIPTION["paths"].items() for method in item
    }  # fmt: skip
    assert served == answer


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
