"""Errors of the controller's door: every refusal as a gRPC status, mapped here and nowhere else.

A status has a short text. Programs read the trailing metadata: `roost-code` (the same stable codes as in the REST API),
`roost-path` (the field), `roost-params` (the facts as JSON), `roost-hint`, and `roost-since` (where a stream resumes).
"""

import json

import grpc

from roost.model.errors import RoostError, TooMuch
from roost.server.http.api.errors import error_view

# The words of a status travel in a header as three bytes for each odd one, and clients take 8 KiB of headers.
WORDS_LENGTH_MAX = 600
VALUE_LENGTH_MAX = 300
PARAMS_LENGTH_MAX = 2_000  # longer facts are left out

STATUSES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
#: Where the code tells more than the status of HTTP does.
CODES = {
    "name_in_use": grpc.StatusCode.ALREADY_EXISTS,
    "quota_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "outcome_unknown": grpc.StatusCode.UNKNOWN,  # not UNAVAILABLE, which programs try again without a thought
}


class RpcError(Exception):
    def __init__(self, error: RoostError, since: str = "") -> None:
        super().__init__(error.message)
        self.status = CODES.get(error.code) or STATUSES.get(error.status, grpc.StatusCode.INTERNAL)
        self.error = error_view(error)
        self.since = since

    async def send(self, context: grpc.aio.ServicerContext) -> None:
        error = self.error
        sentence = f"{error.path}: {error.message}" if error.path else error.message
        hint = error.hint if isinstance(error.hint, str) else ""
        fields = {"code": error.code, "path": error.path, "hint": hint, "since": self.since}
        trailing = [(f"roost-{name}", _plain(value)) for name, value in fields.items() if value]
        params = json.dumps(error.params) if error.params else ""
        if 0 < len(params) <= PARAMS_LENGTH_MAX:
            trailing.append(("roost-params", params))
        await context.abort(self.status, sentence[:WORDS_LENGTH_MAX], tuple(trailing))


class Slow(TooMuch):
    """A reader that does not keep up: it is disconnected, and may reconnect."""

    code = "slow_reader"


def _plain(value: str) -> str:
    """A value of metadata is printable ASCII."""
    text = value.encode("ascii", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in text)[:VALUE_LENGTH_MAX]
