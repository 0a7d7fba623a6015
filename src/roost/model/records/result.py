"""The result of an attempt: JSON that its process wrote, or why there is none."""

from enum import StrEnum

import msgspec

from roost.model.limits import RESULT_BYTES_MAX, RESULT_DEPTH_MAX


class ResultProblem(StrEnum):
    """Why an attempt that wrote something has no result."""

    TOO_LARGE = "too_large"
    TOO_DEEP = "too_deep"
    NOT_JSON = "not_json"
    NOT_A_FILE = "not_a_file"  # a link, a directory, a pipe
    UNREADABLE = "unreadable"
    NODE_FULL = "node_full"  # its node has too many results that the server has not got yet
    PROJECT_FULL = "project_full"
    SERVER_FULL = "server_full"


class Result(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """`data` is JSON without spaces between its values. Without data, `problem` says why there is none."""

    data: bytes = b""
    problem: ResultProblem | None = None
    size: int = 0  # bytes that were written


def result_of(data: bytes) -> Result:
    """A result as it was written, checked. Keys, their order and the digits of numbers stay as they are.

    A key that is there twice stays: readers take the last one. NaN and numbers beyond a double are not JSON.
    """
    problem = problem_of(data)
    if problem is not None:
        return Result(problem=problem, size=len(data))
    return Result(msgspec.json.format(data, indent=-1), size=len(data))


def problem_of(data: bytes) -> ResultProblem | None:
    if len(data) > RESULT_BYTES_MAX:
        return ResultProblem.TOO_LARGE
    try:
        msgspec.json.decode(data)
        may_be_deep = data.count(b"[") + data.count(b"{") > RESULT_DEPTH_MAX
        is_deep = may_be_deep and _TOO_DEEP in msgspec.json.format(data, indent=1)
    except RecursionError:
        is_deep = True
    except ValueError:
        return ResultProblem.NOT_JSON
    return ResultProblem.TOO_DEEP if is_deep else None


_TOO_DEEP = b"\n" + b" " * (RESULT_DEPTH_MAX + 1)  # an indentation; no string has a line break that is not escaped
