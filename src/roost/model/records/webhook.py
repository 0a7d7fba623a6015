"""Webhooks: their events, and the signature of a message."""

import hmac
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import msgspec

from roost.model.errors import Invalid
from roost.model.keys import workload_key
from roost.model.records.access import EVERYWHERE
from roost.model.spec.names import check_name
from roost.model.states import ALLOCATED, FINISHED, MOVES, NODE_MOVES, InstanceState

URL_LENGTH_MAX = 2_000  # what proxies and servers take
EVENTS_MAX = 50  # of one hook: there are fewer names than that
PATTERN_LENGTH_MAX = 128  # PROJECT/NAME and a star
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 8, 256  # shorter ones are guessed; longer ones are hashed to 32 bytes anyway
COMMAND_LENGTH_MAX = 4_096  # one line of a shell
COMMANDS_MAX = 20  # of one server; each has a queue of its own
SIGNATURE_LENGTH_MAX = 200
AGE_S_MAX = 300  # of a signature that is believed: clocks differ, and a try takes ten seconds

PREEMPTED = "preempted"
POWER = "power"
ENDED = "instance.ended"
FINISHED_WORKLOAD = "workload.finished"
#: The events. `instance.ended` stands for every end of an attempt, also of one that is tried again.
NAMES = (
    ENDED, *(f"instance.{state}" for state in MOVES), f"instance.{PREEMPTED}", f"instance.{POWER}",
    FINISHED_WORKLOAD, *(f"node.{status}" for status in NODE_MOVES),
)  # fmt: skip
GROUPS = ("*", "instance.*", "workload.*", "node.*")
DEFAULT_EVENTS = (ENDED, FINISHED_WORKLOAD)


class Hook(msgspec.Struct, frozen=True, omit_defaults=True):
    """A webhook as it is stored, under PROJECT/NAME; project `*`: it hears of all projects, and of nodes."""

    url: str
    events: tuple[str, ...] = DEFAULT_EVENTS
    workload: str = ""  # NAME or PREFIX*; of all projects: PROJECT/NAME or PROJECT/PREFIX*
    enabled: bool = True
    sealed: bytes = b""  # the secret that messages are signed with; none: they are not
    since: int = 0  # later commits are delivered
    changed_ms: int = 0
    changed_by: str = ""


class WebhookPosition(msgspec.Struct, frozen=True, array_like=True):
    """Up to which commit everything was delivered or given up."""

    revision: int
    at_ms: int = 0


class WebhookEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A change of state as receivers get it. Fields are added, never changed; the same event has the same id again."""

    id: str
    event: str  # instance.failed, workload.finished, node.lost, ...; ping: a test
    at_ms: int
    revision: int
    kind: str  # instance | workload | node | hook (a ping)
    key: str  # PROJECT/NAME.INDEX, PROJECT/NAME, or the node's name
    project: str = ""
    workload: str = ""
    index: int | None = None
    state: str = ""
    before: str = ""  # the state it was in; "": there was none, or it is unknown
    ended: bool = False  # an attempt is over, expected or not
    message: str = ""
    reason: dict[str, Any] | None = None  # the message as data: its code and params
    attempt: int = 0
    node: str = ""
    exit_code: int | None = None
    signal: int | None = None
    version: int = 0
    counts: dict[InstanceState, int] | None = None  # of a workload: its instances by state
    result: Any = None  # of an attempt that is over, as the API shows it with its instance; None: it wrote none
    outputs: Any = None  # of an attempt that is over, as the API sums them up; None: none were collected
    usage: Any = None  # of an attempt that is over, as the API shows it; None: its end was not reported


class Command(msgspec.Struct, frozen=True):
    name: str
    events: tuple[str, ...]
    command: str


def check_hook(project: str, name: str, hook: Hook) -> None:
    if project != EVERYWHERE:
        check_name(project, "project")
    check_name(name, "name")
    check_url(hook.url, "url")
    check_events(hook.events, "events")
    if project != EVERYWHERE and any(event.startswith("node.") for event in hook.events):
        raise Invalid("events", f"nodes belong to no project: a hook of project {EVERYWHERE} can receive them")
    check_pattern(hook.workload, "workload", of_all=project == EVERYWHERE)


def check_url(url: str, path: str) -> None:
    """http or https, without a user and a password."""
    if len(url) > URL_LENGTH_MAX:
        raise Invalid(path, f"a URL may have {URL_LENGTH_MAX:,} characters; this one has {len(url):,}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Invalid(path, f"{url!r:.200} is not a URL") from None
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise Invalid(path, "a URL is made of ASCII characters without spaces; write others as %XX, hosts as xn--")
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.fragment:
        raise Invalid(path, f"{url!r:.200} is not like https://HOST/PATH")
    if "@" in parts.netloc:
        raise Invalid(path, "no name and no password in a URL: it is shown to others")


def check_events(events: tuple[str, ...], path: str) -> None:
    if not events:
        raise Invalid(path, "name at least one event, or leave it out for every end")
    if len(events) > EVENTS_MAX:
        raise Invalid(path, f"a hook has at most {EVENTS_MAX} events, not {len(events):,}")
    for number, event in enumerate(events):
        if event not in NAMES and event not in GROUPS:
            message = f"there is no event {event!r:.60}; there are {', '.join((*GROUPS, *NAMES))}"
            raise Invalid(f"{path}[{number}]", message)


def check_pattern(pattern: str, path: str, *, of_all: bool) -> None:
    """A name, or the beginning of one with a star behind it."""
    if not pattern:
        return
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise Invalid(path, f"this may have {PATTERN_LENGTH_MAX} characters; it has {len(pattern)}")
    project, slash, name = pattern.rpartition("/")
    if bool(slash) != of_all:
        shape = "PROJECT/NAME or PROJECT/PREFIX*" if of_all else "NAME or PREFIX*"
        raise Invalid(path, f"this is {shape}, not {pattern!r:.140}")
    if slash:
        check_name(project, path)
    if name != "*":
        check_name(name.removesuffix("*").rstrip("-_") if name.endswith("*") else name, path)


def check_secret(secret: bytes, path: str) -> None:
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        message = f"a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes; `openssl rand -hex 32` makes one"
        raise Invalid(path, message)


def read_command(text: str, path: str) -> Command:
    """NAME=COMMAND or NAME:EVENT,EVENT=COMMAND. Raises Invalid."""
    head, equals, command = text.partition("=")
    name, colon, events = head.partition(":")
    if not equals or not command.strip():
        raise Invalid(path, f"this is NAME=COMMAND or NAME:EVENT,EVENT=COMMAND, not {text!r:.100}")
    check_name(name, path)
    if len(command) > COMMAND_LENGTH_MAX or "\0" in command:
        raise Invalid(path, f"a command is a line of at most {COMMAND_LENGTH_MAX:,} characters")
    answer = tuple(events.split(",")) if colon else DEFAULT_EVENTS
    check_events(answer, path)
    return Command(name, answer, command)


def is_wanted(event: WebhookEvent, events: frozenset[str], pattern: str) -> bool:
    is_named = event.event in events or (event.ended and ENDED in events)
    if not is_named and "*" not in events and f"{event.kind}.*" not in events:
        return False
    if not pattern:
        return True
    name = workload_key(event.project, event.workload) if "/" in pattern else event.workload
    if pattern.endswith("*"):
        return bool(event.workload) and name.startswith(pattern[:-1])
    return name == pattern


def is_end(before: InstanceState | None, state: InstanceState) -> bool:
    """Whether a transition ends an attempt, or an instance that never had one."""
    return state in FINISHED or (before in ALLOCATED and state not in ALLOCATED)


def sign(secret: bytes, at_s: int, body: bytes) -> str:
    """The value of `Roost-Signature`: the time of the try, and a digest that only who has the secret can make."""
    return f"t={at_s},v1={_digest(secret, at_s, body)}"


def check_signature(secret: bytes, text: str, body: bytes, now_s: int, age_s_max: int = AGE_S_MAX) -> None:
    """Whether a message is from who has the secret, and not an old one again. Raises Invalid."""
    answer = dict(part.partition("=")[::2] for part in text[:SIGNATURE_LENGTH_MAX].strip().split(","))
    at, digest = answer.get("t", ""), answer.get("v1", "")
    if not (at.isascii() and at.isdigit() and len(at) <= 18) or not digest.isascii():
        raise Invalid("signature", "a signature is like t=SECONDS,v1=DIGEST")
    if not hmac.compare_digest(digest, _digest(secret, int(at), body)):
        raise Invalid("signature", "it does not match: another secret, or the body was changed")
    if abs(now_s - int(at)) > age_s_max:
        raise Invalid("signature", f"it was made {abs(now_s - int(at)):,} s ago or ahead; {age_s_max:,} are allowed")


def _digest(secret: bytes, at_s: int, body: bytes) -> str:
    return hmac.new(secret, f"{at_s}.".encode() + body, sha256).hexdigest()
