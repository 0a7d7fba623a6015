"""What gRPC says has gone wrong, as errors of the client; and whether it is worth another try."""

from typing import Any

from roost.client.errors import ApiError

#: The status of HTTP that the REST API would have answered with.
STATUSES = {
    "INVALID_ARGUMENT": 422, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404, "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409, "RESOURCE_EXHAUSTED": 413, "UNAVAILABLE": 503, "UNKNOWN": 503, "DEADLINE_EXCEEDED": 504,
}  # fmt: skip
SLOW = "slow_reader"
UNKNOWN = "outcome_unknown"  # a server that stands by had asked the leader, which went away


def error_of(error: Any) -> ApiError:
    """An RpcError in our words."""
    told = _trailing(error)
    words, path = error.details() or error.code().name, told.get("roost-path", "")
    code = told.get("roost-code", "unavailable" if comes_back(error) else error.code().name.lower())
    status = STATUSES.get(error.code().name, 500)
    return ApiError(status, code, words.removeprefix(f"{path}: "), path, told.get("roost-hint", ""))


def comes_back(error: Any) -> bool:
    """Whether the same may work a moment later, or with another server."""
    told = _trailing(error).get("roost-code")
    return error.code().name == "UNAVAILABLE" or told in (SLOW, UNKNOWN) or breaks_off(error)


def breaks_off(error: Any) -> bool:
    """Whether a connection broke, ours or one between servers, so that nobody knows what became of the call."""
    told = _trailing(error).get("roost-code")
    if told is not None:
        return told == UNKNOWN
    name, words = error.code().name, error.details() or ""
    # What gRPC calls a connection that ends in the middle of something.
    is_cut = name in ("UNKNOWN", "INTERNAL") and ("RST_STREAM" in words or "Stream removed" in words)
    return is_cut or name in ("UNAVAILABLE", "CANCELLED")


def is_unsent(error: Any) -> bool:
    """Whether there was no connection at all, so that nobody can have heard of the call."""
    if "roost-code" in _trailing(error):
        return False
    return error.code().name == "UNAVAILABLE" and "failed to connect" in (error.details() or "").lower()


def _trailing(error: Any) -> dict[str, str]:
    found = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    return {name: value for name, value in found or () if isinstance(value, str)}
