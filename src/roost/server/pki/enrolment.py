"""Join tokens: made for machines that are to become nodes, with a number of uses and an end, stored as a hash.

A use is counted in the same commit that lets the node join, so no use is spent twice.
"""

import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256

import msgspec

from roost.model.errors import Conflict, Invalid, NoService, NotFound, Refused, RoostError, TooOften
from roost.model.events import PutRecords
from roost.model.limits import COUNTABLE_MAX
from roost.model.records.enrolment import Credential, JoinRequest, JoinToken
from roost.model.records.opaque import By, OpaqueRecord
from roost.model.spec.names import check_name
from roost.schema.access.enrolment import JoinTokenMade, JoinTokenView
from roost.server.attempts import WrongAttempts
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.authority import DAY_MS, now_ms
from roost.server.pki.certificates import Certificates

KIND = "join"
ID_BYTES = 5
SECRET_BYTES = 24  # 192 bits: not to be guessed
LIFE_MS_DEFAULT = 3_600_000  # an hour: enough to carry it to a machine
LIFE_MS_MIN, LIFE_MS_MAX = 1_000, 366 * DAY_MS
TRIES_MAX = 16  # of a use that conflicts with other uses of the same token
BAD_MAX = 10  # wrong attempts per minute with one token from one address; more are refused until the next minute
ADDRESS_BAD_MAX = 100  # from one address, which may be a proxy of many machines

log = logging.logger("join")


class StoredJoinToken(msgspec.Struct, frozen=True, omit_defaults=True):
    digest: bytes
    expires_ms: int
    created_ms: int
    uses: int | None = 1  # left; None: any number
    pool: str = ""


class Joining:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._certificates: Certificates | None = None
        self._urls: tuple[str, ...] = ()
        self.others: Callable[[], tuple[str, ...]] = tuple  # the APIs of other servers
        self._bad, self._address_bad = WrongAttempts(BAD_MAX), WrongAttempts(ADDRESS_BAD_MAX)

    def begin(self, certificates: Certificates, urls: tuple[str, ...]) -> None:
        """The CA is open. New machines will find the API at these addresses."""
        self._certificates, self._urls = certificates, urls

    @property
    def certificates(self) -> Certificates:
        """Raises NoService while the CA is being opened."""
        if self._certificates is None:
            raise NoService("the server is starting")
        return self._certificates

    async def create(self, pool: str, uses: int | None, life_ms: int, by: By | None = None) -> JoinTokenMade:
        """A new token; expired ones are deleted with it. Raises Invalid, Conflict."""
        if pool:
            check_name(pool, "pool")
        if uses is not None and not 1 <= uses <= COUNTABLE_MAX:
            raise Invalid("uses", f"a token has 1 to {COUNTABLE_MAX:,} uses, or none that are counted; not {uses:,}")
        if not LIFE_MS_MIN <= life_ms <= LIFE_MS_MAX:
            raise Invalid("expires", f"a token lives for {LIFE_MS_MIN // 1_000} s to {LIFE_MS_MAX // DAY_MS} days")
        now = now_ms()
        name, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        stored = StoredJoinToken(_digest(secret), now + life_ms, now, uses, pool)
        over = [OpaqueRecord(KIND, old, None) for old, record in self._all().items() if record.expires_ms < now]
        records = (*over, OpaqueRecord(KIND, name, _pack(stored), None))
        await self._engine.ask(partial(PutRecords, records=records), by)
        token = JoinToken((*self._urls, *self.others()), self.certificates.authority.fingerprint, name, secret)
        return JoinTokenMade(token.text(), _view(name, stored))

    def listed(self) -> list[JoinTokenView]:
        now = now_ms()
        return [_view(name, record) for name, record in sorted(self._all().items()) if record.expires_ms >= now]

    async def revoke(self, name: str, by: By | None = None) -> None:
        """Delete a token. Nodes that joined with it stay. Raises NotFound."""
        if name not in self._engine.state.opaque_records.get(KIND, {}):
            raise NotFound(f"there is no join token {name:.80}")
        await self._engine.ask(partial(PutRecords, records=(OpaqueRecord(KIND, name, None),)), by)

    @contextmanager
    def reading(self, address: str) -> Iterator[None]:
        """Around reading a request of an unknown caller: an address that was wrong too often is refused before it."""
        if self._address_bad.are_too_many(address):
            raise TooOften(f"too many attempts from {address} were wrong; wait a minute")
        try:
            yield
        except RoostError:
            self._address_bad.note(address)
            raise

    async def join(self, asked: JoinRequest, address: str) -> Credential:
        """Let the holder of a token join. Raises Refused, Conflict, Invalid, TooOften."""
        pair = f"{asked.id:.20} {address}"
        if self._address_bad.are_too_many(address) or self._bad.are_too_many(pair):
            raise TooOften(f"too many attempts with this token, or from {address}, were wrong; wait a minute")
        try:
            return await self._use(asked, address)
        except RoostError as error:
            if isinstance(error, Refused | Invalid):
                self._bad.note(pair)
                self._address_bad.note(address)
            log.warning("join refused", address=address, node=asked.node[:80], token=asked.id[:20], reason=str(error))
            raise

    async def _use(self, asked: JoinRequest, address: str) -> Credential:
        for _ in range(TRIES_MAX):
            was = self._engine.state.opaque_records.get(KIND, {}).get(asked.id)
            stored = _read(was) if was is not None else None
            digest = _digest(asked.secret)
            if stored is None or not hmac.compare_digest(digest, stored.digest):
                message = "this join token is not known here: it was used up, revoked, or is not whole"
                raise Refused(message, code="join_refused")
            if stored.expires_ms < now_ms():
                message = "the time of this join token is over; make another one: `roost join-tokens create`"
                raise Refused(message, code="join_refused")
            left = stored.uses - 1 if stored.uses is not None else None
            value = None if left == 0 else _pack(msgspec.structs.replace(stored, uses=left))
            use = OpaqueRecord(KIND, asked.id, value, was)
            try:
                by = By(f"join-token:{asked.id}", address)
                return await self.certificates.enrol(asked.node, asked.request, stored.pool, (use,), by)
            except Conflict as error:
                if error.code != "changed":
                    raise
        raise NoService("others use the same token; try again in a moment", code="busy")

    def _all(self) -> dict[str, StoredJoinToken]:
        return {name: _read(value) for name, value in self._engine.state.opaque_records.get(KIND, {}).items()}


def _view(name: str, stored: StoredJoinToken) -> JoinTokenView:
    return JoinTokenView(name, stored.pool, stored.uses, stored.created_ms, stored.expires_ms)


def _digest(secret: str) -> bytes:
    return sha256(b"roost join " + secret.encode()).digest()


_pack = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(StoredJoinToken).decode
