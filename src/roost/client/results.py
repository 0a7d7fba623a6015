"""Results that somebody else than an agent knows: the client's call for them."""

import msgspec

from roost.client import types
from roost.client.transport import Transport


class ResultCalls:
    """What a client says about results."""

    _transport: Transport

    def post_result(
        self, project: str, name: str, index: int, token: int, code: int, cause: str = ""
    ) -> types.Instance:
        """Say how a run ended, as somebody who knows it; `token` is that of its attempt."""
        path = f"/v1/workloads/{project}/{name}/instances/{index}/result"
        body = msgspec.json.encode({"token": token, "code": code, "cause": cause})
        return msgspec.json.decode(self._transport.call("POST", path, None, body).body, type=types.Instance)
