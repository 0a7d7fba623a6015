"""What etcd's errors mean: whether trying again may help, and messages that an operator can act on."""

import enum

import grpc

from roost.ports.store import StoreError


class Compacted(StoreError):
    """etcd has dropped the history that was asked for."""


class TooLarge(StoreError):
    """An answer or a request is larger than one side takes."""


class NoAnswer(StoreError):
    """No member answered: a transaction may have been made all the same."""


class Verdict(enum.Enum):
    AGAIN = enum.auto()  # another member, or the same one a little later, may do it
    TOKEN = enum.auto()  # with a new token
    COMPACTED = enum.auto()
    LARGE = enum.auto()
    NO = enum.auto()  # a person has to do something
    DENIED = enum.auto()  # the same: the user or its rights are wrong


# Parts of etcd's messages, because one code stands for many things. The first that matches counts.
TEXTS: list[tuple[str, Verdict, str]] = [
    (
        "database space exceeded",
        Verdict.NO,
        "etcd's space is used up (alarm NOSPACE): compact and defragment it or raise --quota-backend-bytes, "
        "then `etcdctl alarm disarm`",
    ),
    ("revision has been compacted", Verdict.COMPACTED, "etcd has compacted that revision"),
    ("larger than max", Verdict.LARGE, "the message is larger than the other side takes"),
    (
        "request is too large",
        Verdict.LARGE,
        "etcd's --max-request-bytes is below its default of 1.5 MiB: raise it to 1572864 or more",
    ),
    (
        "too many operations in txn",
        Verdict.NO,
        "the --max-txn-ops of etcd is smaller than `operations=` of the store URL (default 128)",
    ),
    (
        "too many requests",
        Verdict.AGAIN,
        "etcd is overloaded (too many requests): look at its disk and its other users",
    ),
    ("no leader", Verdict.AGAIN, "the etcd member has no leader: more than half of the members have to be up"),
    ("leader changed", Verdict.AGAIN, "etcd is choosing a new leader"),
    (
        "request timed out",
        Verdict.AGAIN,
        "etcd did not get its members to agree in time: look at its disks and network",
    ),
    ("server stopped", Verdict.AGAIN, "the etcd member is stopping"),
    ("invalid auth token", Verdict.TOKEN, "etcd does not know our token"),
    ("auth store is old", Verdict.TOKEN, "etcd's users have changed since our token was made"),
    ("invalid user ID or password", Verdict.DENIED, "etcd refuses the user or the password"),
    ("authentication is not enabled", Verdict.DENIED, "etcd has no users: leave user and password out, or enable auth"),
    ("user name is empty", Verdict.DENIED, "etcd asks for a user: give one with its password"),
    ("permission denied", Verdict.DENIED, "the etcd user may not read and write the prefix: grant it a role that may"),
    ("alarm:CORRUPT", Verdict.NO, "etcd says that its data are corrupt (alarm CORRUPT): replace the member"),
    (
        "certificate",
        Verdict.AGAIN,
        "TLS failed: do ca, cert and key fit this etcd, and its certificate the host's name?",
    ),
    ("handshake", Verdict.AGAIN, "TLS failed: do ca, cert and key fit this etcd, and does it speak TLS?"),
    ("SSL", Verdict.AGAIN, "TLS failed: do ca, cert and key fit this etcd?"),
]

AGAIN = {grpc.StatusCode[name] for name in ("INTERNAL", "UNKNOWN", "CANCELLED", "ABORTED")}

# What gRPC says when there was no connection: the request cannot have arrived.
UNSENT = "failed to connect"


def judge(code: grpc.StatusCode, details: str, endpoint: str) -> tuple[Verdict, str]:
    """What can be done about an error, and a message."""
    for part, verdict, meaning in TEXTS:
        if part in details:
            return verdict, f"{meaning} ({endpoint}: {details})"
    at = f"etcd at {endpoint}"
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Verdict.AGAIN, f"{at} does not answer: is it up, and is the network?"
        case grpc.StatusCode.UNAVAILABLE:
            reasons = "is it up, and does it want TLS or a client certificate?"
            return Verdict.AGAIN, f"{at} cannot be reached: {reasons} ({details})"
        case grpc.StatusCode.UNAUTHENTICATED:
            verdict = Verdict.TOKEN
        case _:
            verdict = Verdict.AGAIN if code in AGAIN else Verdict.NO
    return verdict, f"{at} refuses: {details or code.name}"
