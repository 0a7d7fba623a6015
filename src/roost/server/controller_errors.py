"""Errors of the controller's door: every refusal as a gRPC status, mapped here and nowhere else.

A status has a few words; what a program wants to know is in the trailing metadata: `roost-code` (the same stable codes
as in the REST API), `roost-path` (the field), `roost-hint`, and `roost-since` (where a stream can be taken up again).
"""

import grpc
import msgspec

from roost.model.errors import NoService, RoostError, TooMuch
from roost.server.api.errors import ErrorView, error_view

# The words of a status travel in a header as three bytes for each odd one, and clients take 8 KiB of headers.
WORDS_LENGTH_MAX = 600
VALUE_LENGTH_MAX = 300

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


class Told(Exception):
    """A call that ends with something else than an answer."""

    def __init__(self, status: int, error: ErrorView, since: str = "") -> None:
        super().__init__(error.message)
        self.status = CODES.get(error.code) or STATUSES.get(status, grpc.StatusCode.INTERNAL)
        self.error = error
        self.since = since

    async def send(self, context: grpc.aio.ServicerContext) -> None:
        """End the call."""
        error = self.error
        words = f"{error.path}: {error.message}" if error.path else error.message
        hint = error.hint if isinstance(error.hint, str) else ""
        fields = {"code": error.code, "path": error.path, "hint": hint, "since": self.since}
        trailing = tuple((f"roost-{name}", _plain(value)) for name, value in fields.items() if value)
        await context.abort(self.status, words[:WORDS_LENGTH_MAX], trailing)


class Slow(TooMuch):
    """A reader that does not keep up: it is sent away, and may come back."""

    code = "slow_reader"


def told_of(error: RoostError, since: str = "") -> Told:
    """An error of ours."""
    return Told(error.status, error_view(error), since)


def told_by_api(status: int, body: bytes) -> Told:
    """What the API has answered instead of what was asked for."""
    try:
        return Told(status, msgspec.json.decode(body, type=ErrorView))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return told_of(NoService("the answer was no answer", code="internal"))


def _plain(value: str) -> str:
    """A value of metadata is printable ASCII."""
    text = value.encode("ascii", "backslashreplace").decode()
    return "".join(each if each.isprintable() else "?" for each in text)[:VALUE_LENGTH_MAX]
