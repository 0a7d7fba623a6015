"""What is stored for others: records that no rule of the core reads, each kind bounded in number and size."""

import msgspec

VALUE_BYTES_MAX = 64 << 10  # a certificate chain, a key, a password; larger values belong in a file

#: kind -> how many. Ten thousand records of a kilobyte are 10 MB in memory, and in etcd too.
OPAQUE_KINDS = {
    "token": 10_000,  # NAME
    "member": 10_000,  # PROJECT/SUBJECT
    "join": 10_000,  # ID
    "certificate": 20_000,  # NODE: as many as a server is made for, twice
    "secret": 10_000,  # PROJECT/NAME, sealed
    "named-files": 10_000,  # PROJECT/NAME
    "blob-keys": 1,  # of the bucket, sealed
    "deleted-blobs": 10_000,  # PROJECT: those that a leader is deleting, a hundred at most
    "hook": 200,  # PROJECT/NAME; each has a queue of up to 1,000 events in memory
    "hook-position": 1,  # up to where each has come, stored every few seconds at most
    "template": 1_000,  # PROJECT/NAME
    "template-version": 10_001,  # PROJECT/NAME@VERSION: ten of each, and one more before the oldest is dropped
    "authority": 16,  # the own CA, its key sealed
    "series": 1,  # of the servers' certificates
    "audit": 1_000,  # a ring for recent entries; the history has older ones
}


class OpaqueRecord(msgspec.Struct, frozen=True):
    """One record to be stored or, without a value, forgotten. `was`: what it must be now, if set."""

    kind: str
    name: str
    value: bytes | None
    was: bytes | None | msgspec.UnsetType = msgspec.UNSET  # None: nothing of that name is there


class By(msgspec.Struct, frozen=True, array_like=True):
    who: str
    where: str = ""


class Audit(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int
    at_ms: int
    who: str
    where: str
    what: str  # the name of the request, as `submit`
    target: str  # what it was about, as PROJECT/NAME; never a value that may be secret
    revision: int
    detail: str = ""  # what has changed, as `role admin, before viewer`; or why it was refused
    refused: bool = False  # the caller's role was too low: nothing has changed
