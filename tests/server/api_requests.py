"""Requests of API tests: set a resource, or expect a refusal. And the rule of every route."""

from collections.abc import Iterable
from typing import Any

from litestar.routes import HTTPRoute

from roost.server.http.api.context import name_of, rule_of
from roost.server.operations.permit import Rule
from tests.server.inprocess_server import InprocessServer


async def put(made: InprocessServer, path: str, body: Any, expect: int = 200) -> Any:
    """The answer to a setting."""
    answer = await made.client.put(path, json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


async def refused(made: InprocessServer, method: str, path: str, body: Any) -> tuple[int, Any]:
    """A refusal, after which everything is as it was before."""
    state = made.engine.state

    def stored() -> Any:
        return state.revision, dict(state.projects), dict(state.pools), dict(state.reservations)

    before = stored()
    answer = await made.client.request(method, path, json=body)
    assert 400 <= answer.status_code < 500, answer.text
    assert stored() == before
    report = answer.json()
    assert report["code"] and report["message"] and "path" in report
    return answer.status_code, report


def operations(routes: Iterable[Any]) -> dict[str, Rule]:
    """Every operation of an application, without the framework's own, and its rule."""
    handlers = [handler for route in routes if isinstance(route, HTTPRoute) for handler in route.route_handlers]
    own = [handler for handler in handlers if not str(handler.fn.__module__).startswith("litestar.")]
    return {name_of(handler): rule_of(handler) for handler in own}
