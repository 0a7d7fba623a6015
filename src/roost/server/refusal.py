"""Refusal: how a call over gRPC is ended by us, with a status and words."""

import grpc

from roost.model.errors import Conflict, Invalid, Refused, RoostError, TooMuch


class Refusal(Exception):
    """A call that is ended by us."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


def refusal_of(error: RoostError) -> Refusal:
    """An error as whoever calls over gRPC is told of it."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return Refusal(code, str(error))
    return Refusal(grpc.StatusCode.UNAVAILABLE, error.message)


_CODES = {
    Conflict: grpc.StatusCode.ALREADY_EXISTS,
    TooMuch: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refused: grpc.StatusCode.UNAUTHENTICATED,
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
}
