"""What can be wrong with a request, as one tree; the API maps it to HTTP in one place.

RoostError            code, message, and what to do next
├── Unreadable   400  not JSON or YAML that can be read
├── Invalid      422  a field is wrong: path and sentence
├── NotFound     404  nothing of that name
├── Conflict     409  the name is taken, or the object is not in a state for this
├── Refused      401  no token, or one that is not known
├── Forbidden    403  known, but not allowed to do this
├── TooMuch      413  larger or more than a limit allows
├── WrongType    415  sent as something Roost does not read
├── TooOften     429  wrong too many times; wait
└── NoService    503  nobody can decide just now
"""

from typing import ClassVar


class RoostError(Exception):
    """A request that cannot be carried out, told in words."""

    status: ClassVar[int] = 500
    code: str = "error"

    def __init__(self, message: str, *, code: str = "", path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        if code:
            self.code = code

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Unreadable(RoostError):
    """What was sent cannot be read as what it says it is."""

    status = 400
    code = "unreadable"


class Invalid(RoostError):
    """A field is wrong; `path` says which."""

    status = 422
    code = "invalid"

    def __init__(self, path: str, message: str, *, code: str = "") -> None:
        super().__init__(message, code=code, path=path)


class NotFound(RoostError):
    """Nothing of that name is known."""

    status = 404
    code = "not_found"


class Conflict(RoostError):
    """The name is in use, or the object is not in a state that allows this."""

    status = 409
    code = "conflict"


class Refused(RoostError):
    """Whoever asks has not shown a token that is known here."""

    status = 401
    code = "refused"


class Forbidden(RoostError):
    """Whoever asks is known, and has no role that allows this."""

    status = 403
    code = "forbidden"


class TooMuch(RoostError):
    """More than a limit allows."""

    status = 413
    code = "too_large"


class WrongType(RoostError):
    """What was sent is of a kind that is not read here."""

    status = 415
    code = "unsupported_type"


class TooOften(RoostError):
    """Whoever asks was wrong too many times and has to wait."""

    status = 429
    code = "too_often"


class NoService(RoostError):
    """Nobody can decide just now; the same request may succeed a moment later."""

    status = 503
    code = "unavailable"
