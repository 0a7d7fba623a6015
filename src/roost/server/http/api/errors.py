"""Errors: every refusal in one shape, mapped to HTTP here and nowhere else."""

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from roost.model.errors import Forbidden, Invalid, NotFound, RoostError
from roost.model.spec.problems import all_of
from roost.model.spec.reading import bounds, type_name
from roost.schema.errors import ErrorView
from roost.schema.reason_text import error_message, error_params
from roost.server.auth.principal import PRINCIPAL
from roost.server.observability import logging

MESSAGE_LENGTH_MAX = 1_000  # a message may quote what was sent, and that may be megabytes
RETRY_AFTER_S = "1"

HINTS = {
    "refused": "send the header `Authorization: Bearer TOKEN`",
    "forbidden": "`roost whoami` shows what you may do; an admin gives roles with `roost members` or `roost tokens`",
    "name_in_use": "cancel what has that name first, or take another name",
    "quota_exceeded": "ask for less, or let an operator raise the quota: `roost projects`",
    "plan_stale": "make a new plan and look at it",
    "plan_unknown": "make a new plan",
    "plan_mismatch": "apply the documents the plan was made for, or make a new plan",
    "unsupported_type": "send JSON as application/json, or YAML as application/yaml",
    "busy": "try again in a moment",
    "files_missing": "send these contents, then the manifest again",
    "blobs_unavailable": "an operator sees to the blob store: `roost doctor`; then try again",
    "files_held": "submit or name what was sent; what nothing uses is deleted after a day",
    "too_busy": "try again in a moment, or ask for less (`advice=false`)",
    "answer_failed": "try again in a moment; the server's log says how the process ended",
    "unavailable": "try again in a moment; /readyz says why",
    "internal": "the server's log has the details",
}

SPELT = {"only": "state", "coming": "next", "last": "Last-Event-ID"}  # parameters that operations call otherwise

MEANINGS = {
    400: "The request is unreadable.",
    401: "No token, or an unknown one.",
    403: "Your role does not allow this.",
    404: "There is nothing of that name.",
    409: "The name is in use, or the object is not in a state for this.",
    413: "The body is too large.",
    415: "The body is neither JSON nor YAML.",
    416: "There are no such bytes.",
    422: "A field is wrong; `path` says which.",
    429: "Wrong too many times: wait a minute.",
    503: "No server can decide now.",
}

log = logging.logger("api")
refused = logging.RateLimitedLogger("api")


def error_view(error: RoostError) -> ErrorView:
    message = error_message(error)
    if len(message) > MESSAGE_LENGTH_MAX:
        message = message[: MESSAGE_LENGTH_MAX - 3] + "..."
    hint = HINTS.get(error.code, msgspec.UNSET)
    path, params = error.path[:MESSAGE_LENGTH_MAX], error_params(error)
    return ErrorView(code=error.code, message=message, path=path, params=params, hint=hint)


def encode_error(error: RoostError) -> bytes:
    return msgspec.json.encode(error_view(error))


def answer_error(request: "Request[Any, Any, Any]", error: Exception) -> Response[ErrorView]:
    headers: dict[str, str] = {}
    if isinstance(error, RoostError):
        report, status = error, error.status
        if status == 503:
            headers["retry-after"] = RETRY_AFTER_S
        elif isinstance(error, Forbidden):
            who = request.scope[PRINCIPAL]  # type: ignore[literal-required]
            refused.warning(
                "request refused", where=who.where, who=who.name, path=request.scope["path"][:200], why=error.message
            )
    elif isinstance(error, HTTPException) and error.status_code < 500:
        report, status = _translated(request, error)
        headers.update(error.headers or {})
    else:
        log.error("request failed", method=request.method, path=request.scope["path"][:200], exc_info=error)
        report, status = RoostError("something went wrong in the server", code="internal"), 500
    return Response(error_view(report), status_code=status, headers=headers)


def refusals(*statuses: int) -> dict[int, ResponseSpec]:
    report = sorted({400, 401, *statuses})
    return {status: ResponseSpec(ErrorView, generate_examples=False, description=MEANINGS[status]) for status in report}


def _translated(request: "Request[Any, Any, Any]", error: HTTPException) -> tuple[RoostError, int]:
    if isinstance(error, ValidationException):
        found = [item for item in error.extra if isinstance(item, dict)] if isinstance(error.extra, list) else []
        wrong = [_wrong_parameter(request, str(item.get("key", ""))) for item in found]
        return all_of(wrong or [Invalid("$", "a parameter is wrong")]), 422
    if isinstance(error, NotFoundException):
        return NotFound("there is nothing at this path"), 404
    if isinstance(error, MethodNotAllowedException):
        return RoostError("this path does not know this method", code="method_not_allowed"), 405
    return RoostError(error.detail or "this request cannot be read", code="bad_request"), error.status_code


def _wrong_parameter(request: "Request[Any, Any, Any]", key: str) -> Invalid:
    """A parameter of the path or the query that cannot be read, with what it has to be."""
    parameter = request.route_handler.parsed_fn_signature.parameters.get(key)
    if parameter is None:
        return Invalid(key, "this cannot be read")
    expected = type_name(parameter.annotation) + bounds(parameter.kwarg_definition)
    return Invalid(SPELT.get(key, key), f"this is {expected}")
