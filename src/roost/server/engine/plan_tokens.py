"""Plans that were made, kept until they are applied or too old. Nothing of this is stored: a restart forgets them."""

import hashlib
import hmac
import secrets
from typing import NamedTuple

from roost.model.errors import Conflict, Invalid
from roost.model.events import WorkloadSpec
from roost.model.records.plan import Plan

PLANS_MAX = 256  # kept at a time, the oldest goes first: at most some megabytes each, usually kilobytes
PLAN_MS_MAX = 3_600_000  # an hour: then the fleet has changed anyway
NUMBER_LENGTH = 16


class Kept(NamedTuple):
    plan: Plan
    documents: bytes
    made_ms: int


class Plans:
    """Plans by token. A token is a number and its signature, with a key that is made when the server starts."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._kept: dict[str, Kept] = {}

    def add(self, plan: Plan, wanted: tuple[WorkloadSpec, ...], now_ms: int) -> str:
        number = secrets.token_hex(NUMBER_LENGTH // 2)
        self._kept[number] = Kept(plan, _digest(wanted), now_ms)
        if len(self._kept) > PLANS_MAX:
            del self._kept[next(iter(self._kept))]
        return number + self._signature(number)

    def find(self, token: str, wanted: tuple[WorkloadSpec, ...], now_ms: int) -> Plan:
        """The plan of a token, if it was made for these documents. Raises Invalid, Conflict."""
        number, signature = token[:NUMBER_LENGTH], token[NUMBER_LENGTH:]
        genuine = hmac.compare_digest(signature.encode(), self._signature(number).encode())
        record = self._kept.get(number) if genuine else None
        if record is None or record.made_ms + PLAN_MS_MAX < now_ms:
            self._kept.pop(number if genuine else "", None)
            message = "unknown plan: plans expire after 1 hour or when the server restarts; run `roost plan` again"
            raise Invalid("plan", message, code="plan_unknown")
        if record.documents != _digest(wanted):
            raise Conflict("this plan was made for other documents", code="plan_mismatch", path="plan")
        return record.plan

    def _signature(self, number: str) -> str:
        return hmac.new(self._key, number.encode(), hashlib.sha256).hexdigest()


def _digest(wanted: tuple[WorkloadSpec, ...]) -> bytes:
    every = hashlib.sha256()
    for spec in wanted:
        every.update(len(spec.document).to_bytes(8, "big") + spec.document)
    return every.digest()
