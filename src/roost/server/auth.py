"""Auth: who may come in. One token opens everything; only the probes are open to all."""

from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from typing import Any

from roost.model.errors import Refused, RoostError
from roost.server.api.errors import encode_error

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

OPEN_PATHS = frozenset({"/livez", "/readyz"})


class Door:
    """The outermost layer: a request without the token learns nothing, not even which paths exist."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._expected = b"Bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] not in OPEN_PATHS:
            error = self._refusal(scope["headers"])
            if error is not None:
                await _answer(error, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: list[tuple[bytes, bytes]]) -> RoostError | None:
        for name, value in headers:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                said = b"Bearer " + token.strip() if scheme.lower() == b"bearer" else value
                if compare_digest(said, self._expected):
                    return None
                return Refused("this token is not known here")
        return Refused("a token is needed here")


async def _answer(error: RoostError, send: Send) -> None:
    body = encode_error(error)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b'Bearer realm="roost"'),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
