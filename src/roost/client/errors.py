"""What can go wrong for a client, as one tree.

ClientError             in words, and what to do next
├── NotConfigured       nobody said where the server is
├── Unreachable         nothing answers there, or it stopped answering
├── WaitTimedOut        what was waited for has not happened in time
└── ApiError            the server said no: status, code, message, path, hint
"""


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


class ApiError(ClientError):
    """The server's own no."""

    def __init__(self, status: int, code: str, message: str, path: str = "", hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message
