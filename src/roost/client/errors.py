"""What can go wrong for a client, as one tree.

ClientError             a message, and what to do next
├── NotConfigured       no server is configured
├── Unreachable         nothing answers there, or it stopped answering
├── WaitTimedOut        what was waited for has not happened in time
├── LogIncomplete       the end of a log is not where the server can reach it
├── CannotSend          a file of this machine cannot be read, or cannot travel: path
├── CannotWrite         a fetched file cannot be written here: path
└── ApiError            the server refused: status, code, message, path, params, hint
"""

from collections.abc import Mapping
from typing import Any

UNAVAILABLE, OUTCOME_UNKNOWN = "unavailable", "outcome_unknown"  # codes of the server


class ClientError(Exception):
    """A call that did not do what was asked; `hint` says what to do next, where that is known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class NotConfigured(ClientError):
    """There is no URL, or no token."""


class Unreachable(ClientError):
    """No connection, or one that broke before the answer."""


class WaitTimedOut(ClientError, TimeoutError):
    """The deadline of a wait has passed."""


class LogIncomplete(ClientError):
    """All bytes that the server can reach were read, and the node reported more; `missing` of them are elsewhere."""

    def __init__(self, missing: int, message: str = "") -> None:
        hint = "the log is complete once the node or the server that has them is back"
        super().__init__(
            message or f"the last {missing} bytes of the log are missing: the node has not sent them", hint
        )
        self.missing = missing


class _OfFile(ClientError):
    def __init__(self, path: str, message: str, hint: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message, hint)
        self.path = path


class CannotSend(_OfFile):
    """A file of this machine cannot be read, or cannot travel. Nothing was submitted."""


class CannotWrite(_OfFile):
    """A fetched file cannot be written here. What was there before is unchanged."""


class ApiError(ClientError):
    """The server refused the request. `params`: the facts of the message as data."""

    def __init__(
        self, status: int, code: str, message: str, path: str = "", hint: str = "",
        params: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.path = path
        self.params = dict(params or {})

    @property
    def errors(self) -> list[tuple[str, str]]:
        """Path and message of everything that is wrong with a document, or of the one error that this is."""
        listed = self.params.get("errors") or [{"path": self.path, "message": self.message}]
        return [(str(item["path"]), str(item["message"])) for item in listed]

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def may_send_again(code: str | None, *, is_idempotent: bool) -> bool:
    """Whether a call that failed may be sent again. `code`: None if no answer came, so that it may have been done."""
    if code is None or code == OUTCOME_UNKNOWN:
        return is_idempotent
    return code == UNAVAILABLE
