"""Plans that were made, kept until they are applied or too old. Nothing of this is stored: a restart forgets them."""

import hashlib
import hmac
import secrets
from typing import NamedTuple

from roost.model.errors import Conflict, Invalid
from roost.model.events import Wanted
from roost.model.plan import Plan

PLANS_MAX = 256  # kept at a time, the oldest goes first: at most some megabytes each, usually kilobytes
PLAN_MS_MAX = 3_600_000  # an hour: whoever looks at a plan for longer makes a new one
NUMBER_LENGTH = 16


class Kept(NamedTuple):
    """A plan, for which documents it was made, and when."""

    plan: Plan
    documents: bytes
    made_ms: int


class Plans:
    """Plans by their tokens. A token is a number and its signature, with a key that is made when the server starts."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._kept: dict[str, Kept] = {}

    def keep(self, plan: Plan, wanted: tuple[Wanted, ...], now_ms: int) -> str:
        """Remember a plan; the token is what it is applied with."""
        number = secrets.token_hex(NUMBER_LENGTH // 2)
        self._kept[number] = Kept(plan, _digest(wanted), now_ms)
        if len(self._kept) > PLANS_MAX:
            del self._kept[next(iter(self._kept))]
        return number + self._signature(number)

    def find(self, token: str, wanted: tuple[Wanted, ...], now_ms: int) -> Plan:
        """The plan of a token, for these very documents."""
        number, signature = token[:NUMBER_LENGTH], token[NUMBER_LENGTH:]
        genuine = hmac.compare_digest(signature.encode(), self._signature(number).encode())
        kept = self._kept.get(number) if genuine else None
        if kept is None or kept.made_ms + PLAN_MS_MAX < now_ms:
            self._kept.pop(number if genuine else "", None)
            words = "there is no such plan: it is older than an hour, or this server has started since; make a new one"
            raise Invalid("plan", words, code="plan_unknown")
        if kept.documents != _digest(wanted):
            raise Conflict("this plan was made for other documents", code="plan_mismatch", path="plan")
        return kept.plan

    def _signature(self, number: str) -> str:
        return hmac.new(self._key, number.encode(), hashlib.sha256).hexdigest()


def _digest(wanted: tuple[Wanted, ...]) -> bytes:
    """What tells documents from others, their order included."""
    every = hashlib.sha256()
    for each in wanted:
        every.update(len(each.document).to_bytes(8, "big") + each.document)
    return every.digest()
