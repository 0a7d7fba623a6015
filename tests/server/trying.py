"""How tests of the API set something, and try what must be refused."""

from typing import Any

from tests.server.house import House


async def put(made: House, path: str, body: Any, expect: int = 200) -> Any:
    """The answer to a setting."""
    answer = await made.client.put(path, json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


async def refused(made: House, method: str, path: str, body: Any) -> tuple[int, Any]:
    """A refusal, after which everything is as it was before."""
    state = made.engine.state

    def kept() -> Any:
        return state.revision, dict(state.projects), dict(state.pools), dict(state.reservations)

    before = kept()
    answer = await made.client.request(method, path, json=body)
    assert 400 <= answer.status_code < 500, answer.text
    assert kept() == before
    told = answer.json()
    assert told["code"] and told["message"] and "path" in told
    return answer.status_code, told
