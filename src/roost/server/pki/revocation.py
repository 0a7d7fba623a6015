"""Revocation of server certificates: each belongs to a series, and the next series revokes all before it.

A server can issue certificates to itself, so a list of single ones would not bind it: what is revoked is the key that
leaked out of a file. Running servers notice a new series in their state and issue their own certificate again.
"""

from functools import partial
from typing import Any

import grpc

from roost.core.state.state import State
from roost.model.errors import Conflict
from roost.model.events import PutRecords
from roost.model.records.enrolment import server_name
from roost.model.records.opaque import By, OpaqueRecord
from roost.server.engine.engine import Engine

KIND, NAME = "series", "servers"


def series_of(state: State) -> int:
    """The series of server certificates that are valid; earlier ones are revoked."""
    return int(state.opaque_records.get(KIND, {}).get(NAME, b"0"))


async def revoke_certificates(engine: Engine, by: By) -> int:
    """Begin the next series, and return it. Raises Conflict."""
    if engine.state.settings.adopts:
        message = "a store without memory forgets what was revoked; start the server once with --new-authority"
        raise Conflict(message, code="no_memory")
    was = engine.state.opaque_records.get(KIND, {}).get(NAME)
    series = series_of(engine.state) + 1
    record = OpaqueRecord(KIND, NAME, str(series).encode(), was)
    await engine.ask(partial(PutRecords, records=(record,), detail=f"series {series}"), by)
    return series


def is_revoked(context: "grpc.aio.ServicerContext[Any, Any]", state: State) -> bool:
    """Whether the server at the other end has a certificate of an earlier series."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return server_name(series_of(state)).encode() not in names
