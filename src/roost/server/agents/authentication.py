"""Authentication on the agents' port: which node calls, whether it is accepted, and how a call is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from roost.model.errors import Conflict, Invalid, Refused, RoostError, TooMuch
from roost.server.observability import logging
from roost.server.pki.certificates import Certificates, NodeCredential, Peer, peer_of
from roost.server.pki.revocation import is_revoked
from roost.wire import agent_pb2 as pb

M = TypeVar("M", bound=Message)


class GrpcRefusal(Exception):
    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


CODES = {
    Conflict: grpc.StatusCode.ALREADY_EXISTS,
    TooMuch: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refused: grpc.StatusCode.UNAUTHENTICATED,
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
}


@contextmanager
def refusing() -> Iterator[None]:
    """Raise errors of Roost as refusals."""
    try:
        yield
    except RoostError as error:
        code = next((code for kind, code in CODES.items() if isinstance(error, kind)), None)
        refusal = GrpcRefusal(code, str(error)) if code else GrpcRefusal(grpc.StatusCode.UNAVAILABLE, error.message)
        raise refusal from None


def parsed(kind: type[M], data: bytes, message: str) -> M:
    """Raises GrpcRefusal with this message."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, message) from None


#: Faults of the caller that an operator wants to know of.
FAULTS = frozenset({
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED,
})  # fmt: skip


class AgentAuthenticator:
    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self._refused = logging.RateLimitedLogger("gateway")

    async def admit(self, context: grpc.aio.ServicerContext) -> NodeCredential:
        with refusing():
            return await self.certificates.admit(peer_in(context))

    async def refuse(
        self, refusal: GrpcRefusal, context: grpc.aio.ServicerContext, report: tuple[tuple[str, str], ...] = ()
    ) -> NoReturn:
        """End a call, and log it if the caller is at fault."""
        if refusal.code in FAULTS:
            peer = peer_of(context)
            name = f"{peer.kind} {peer.name}" if peer is not None else ""
            self._refused.warning("agent refused", peer=context.peer(), node=name, reason=refusal.message)
        await context.abort(refusal.code, refusal.message, report)
        raise AssertionError("a call that was ended goes on")

    def check(self, status: NodeCredential) -> None:
        """Refuse a node that was removed or joined again since it was admitted. Raises GrpcRefusal."""
        if not status.holds(self.certificates):
            raise GrpcRefusal(grpc.StatusCode.UNAUTHENTICATED, f"node {status.node} was removed, or has joined again")

    async def renew(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """The handler of Renew: the next certificate of a node, for the key of its request."""
        try:
            with refusing():
                peer = peer_in(context)
                asked = parsed(pb.Renewal, data, "this is not a request for a certificate")
                given = await self.certificates.renew(peer, asked.request)
        except GrpcRefusal as refusal:
            self._refused.warning("certificate not renewed", peer=context.peer(), reason=refusal.message)
            await context.abort(refusal.code, refusal.message)
        return pb.Renewed(
            certificate=given.certificate, authority=given.authority, servers=given.servers,
            issued_ms=given.issued_ms, expires_ms=given.expires_ms,
        ).SerializeToString()  # fmt: skip

    async def server_in(self, context: grpc.aio.ServicerContext) -> str:
        peer = peer_of(context)
        if peer is None or peer.kind != "server":
            await self.refuse(GrpcRefusal(grpc.StatusCode.PERMISSION_DENIED, "this is for servers"), context)
        if is_revoked(context, self.certificates.engine.state):
            message = f"the certificate of server {peer.name} was revoked: it is of an earlier series"
            await self.refuse(GrpcRefusal(grpc.StatusCode.UNAUTHENTICATED, message), context)
        return peer.name


def peer_in(context: grpc.aio.ServicerContext) -> Peer:
    peer = peer_of(context)
    if peer is None:
        raise GrpcRefusal(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no node and no server")
    return peer
