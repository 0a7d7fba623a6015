"""Plans that were made, kept until they are applied or too old. Nothing of this is stored: a restart forgets them."""

import hashlib
import pickle
import secrets
from typing import NamedTuple

from roost.model.errors import Conflict, Invalid
from roost.model.events import WorkloadSpec
from roost.model.records.plan import Plan

PLANS_MAX = 256  # kept at a time, the oldest goes first
BYTES_MAX = 64 << 20  # of all of them: a plan of 10,000 placements has some 3 MB, most have kilobytes
PLAN_MS_MAX = 3_600_000  # an hour: then the fleet has changed anyway
TOKEN_BYTES = 32  # beyond guessing


class Kept(NamedTuple):
    plan: bytes  # as it came from the process that made it
    documents: bytes
    made_ms: int


class Plans:
    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._bytes = 0

    def add(self, token: str, plan: bytes, wanted: tuple[WorkloadSpec, ...], now_ms: int) -> None:
        """Keep a pickled plan. The oldest are dropped for it, and it stays whatever its size."""
        self._kept[token] = Kept(plan, _digest(wanted), now_ms)
        self._bytes += len(plan)
        while len(self._kept) > PLANS_MAX or (self._bytes > BYTES_MAX and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))

    def find(self, token: str, wanted: tuple[WorkloadSpec, ...], now_ms: int) -> Plan:
        """The plan of a token, if it was made for these documents. Raises Invalid, Conflict."""
        record = self._kept.get(token)
        if record is None or record.made_ms + PLAN_MS_MAX < now_ms:
            self._drop(token)
            message = "unknown plan: plans expire after 1 hour or when the server restarts; run `roost plan` again"
            raise Invalid("plan", message, code="plan_unknown")
        if record.documents != _digest(wanted):
            raise Conflict("this plan was made for other documents", code="plan_mismatch", path="plan")
        plan: Plan = pickle.loads(record.plan)
        return plan

    def _drop(self, token: str) -> None:
        record = self._kept.pop(token, None)
        self._bytes -= len(record.plan) if record is not None else 0


def new_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def _digest(wanted: tuple[WorkloadSpec, ...]) -> bytes:
    every = hashlib.sha256()
    for spec in wanted:
        every.update(len(spec.document).to_bytes(8, "big") + spec.document)
    return every.digest()
