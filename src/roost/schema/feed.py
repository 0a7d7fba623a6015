"""What streams of server-sent events carry: changes of records, and a log that is followed."""

from typing import Any

import msgspec

from roost.schema.reason_text import ReasonView
from roost.schema.work import OutputsSummary


class ChangeView(msgspec.Struct, frozen=True):
    """An object after a commit, None when it is gone. `key`: PROJECT/NAME, PROJECT/NAME.INDEX or a node's name."""

    revision: int
    kind: str
    key: str
    what: str
    object: dict[str, Any] | None


class ResetView(msgspec.Struct, frozen=True):
    """The changes since the revision asked for are no longer available: list again, and resume from this one."""

    revision: int
    message: str = ""


class AttemptView(msgspec.Struct, frozen=True):
    """A log that is followed goes on with another attempt."""

    attempt: int
    node: str = ""
    message: str = ""
    reason: ReasonView | None = None  # the message as data


class MissingView(msgspec.Struct, frozen=True):
    """The log of an attempt ends here although its node reported more bytes: the node has not sent them."""

    attempt: int
    bytes: int
    node: str = ""
    stream: str = "stdout"  # stdout | stderr


class EndingView(msgspec.Struct, frozen=True):
    """The end of a log that is followed, and how its instance ended."""

    state: str
    attempt: int = 0
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    reason: ReasonView | None = None  # the message as data
    data: str = ""  # its result, as JSON; empty: it has none
    problem: str = ""  # why what it wrote was not kept
    outputs: OutputsSummary | None = None  # the files that it left; nothing: none were collected
