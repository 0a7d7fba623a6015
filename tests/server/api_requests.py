"""Requests of API tests: set a resource, or expect a refusal."""

from typing import Any

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
