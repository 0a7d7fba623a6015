"""What can be wrong with a request, as one tree; the API maps it to HTTP in one place.

RoostError            code, message, the path of a field, and the facts as params
├── Unreadable   400  not JSON or YAML that can be read
├── Invalid      422  a field is wrong: path and sentence
├── NotFound     404  nothing of that name
├── Conflict     409  the name is taken, or the object is not in a state for this
├── Refused      401  no token, or one that is not known
├── Forbidden    403  known, but not allowed to do this
├── TooMuch      413  larger or more than a limit allows
├── WrongType    415  sent as something Roost does not read
├── OutOfRange   416  bytes after the end
├── TooOften     429  wrong too many times; wait
└── NoService    503  no server can decide now
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # the command line imports errors at every start, and not the records behind them
    from roost.model.reasons.reason import Reason, Text


class RoostError(Exception):
    status: ClassVar[int] = 500
    code: str = "error"

    def __init__(
        self, message: str, *, code: str = "", path: str = "", reason: Reason | None = None, text: Text = (),
        params: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message = message
        self.text = text  # the message with its subjects as data, where it names work of others
        self.reason = reason  # what it is about; the edge says it after the message
        self.path = path
        self.params = params or {}  # the facts of the message, for programs
        if code:
            self.code = code

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Unreadable(RoostError):
    status = 400
    code = "unreadable"


class Invalid(RoostError):
    status = 422
    code = "invalid"

    def __init__(
        self, path: str, message: str, *, code: str = "", text: Text = (), params: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, code=code, path=path, text=text, params=params)
        self.every: tuple[Invalid, ...] = (self,)  # of one that stands for several errors: all of them


class NotFound(RoostError):
    status = 404
    code = "not_found"


class Conflict(RoostError):
    status = 409
    code = "conflict"


class Refused(RoostError):
    status = 401
    code = "refused"


class Forbidden(RoostError):
    status = 403
    code = "forbidden"


class TooMuch(RoostError):
    status = 413
    code = "too_large"


class WrongType(RoostError):
    status = 415
    code = "unsupported_type"


class OutOfRange(RoostError):
    status = 416
    code = "out_of_range"


class TooOften(RoostError):
    status = 429
    code = "too_often"


class NoService(RoostError):
    status = 503
    code = "unavailable"


def error_of(status: int, code: str, message: str, path: str, params: dict[str, Any] | None = None) -> RoostError:
    kinds = {kind.status: kind for kind in RoostError.__subclasses__()}
    error = RoostError.__new__(kinds.get(status, RoostError))
    RoostError.__init__(error, message, code=code, path=path, params=params)
    return error
