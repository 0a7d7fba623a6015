"""Doorkeeper: who is at the other end of a call on the agents' port, and whether that node is let in."""

from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from roost.model.errors import RoostError
from roost.server import say
from roost.server.certificates import Certificates, Peer, Standing, peer_of
from roost.server.refusal import Refusal, refusal_of
from roost.wire import agent_pb2 as pb

#: What whoever calls has done wrong, and an operator wants to know of.
FAULTS = frozenset({
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED,
})  # fmt: skip


class Doorkeeper:
    """Lets nodes in by their certificates, and gives them the next ones."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self._refused = say.Seldom("gateway")

    async def admit(self, context: "grpc.aio.ServicerContext[Any, Any]") -> Standing:
        """The node that calls. Raises Refusal."""
        try:
            return await self.certificates.admit(peer_in(context))
        except RoostError as error:
            raise refusal_of(error) from None

    async def send_away(
        self, refusal: Refusal, context: "grpc.aio.ServicerContext[Any, Any]", told: tuple[tuple[str, str], ...] = ()
    ) -> NoReturn:
        """End a call, and tell the operator if that is somebody's fault."""
        if refusal.code in FAULTS:
            self._refused.warning("agent refused", peer=context.peer(), node=_name_in(context), reason=refusal.words)
        await context.abort(refusal.code, refusal.words, told)
        raise AssertionError("a call that was ended goes on")

    def check(self, standing: Standing) -> None:
        """Whether a node that was let in may still speak. Raises Refusal."""
        if not standing.holds(self.certificates):
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, f"node {standing.node} was removed, or has joined again")

    async def renew(self, data: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        """The handler of Renew: the next certificate of a node, for the key of its request."""
        try:
            given = await self.certificates.renew(peer_in(context), _renewal(data).request)
        except (RoostError, Refusal) as error:
            refusal = error if isinstance(error, Refusal) else refusal_of(error)
            self._refused.warning("certificate not renewed", peer=context.peer(), reason=refusal.words)
            await context.abort(refusal.code, refusal.words)
        return pb.Renewed(
            certificate=given.certificate, authority=given.authority, servers=given.servers,
            issued_ms=given.issued_ms, expires_ms=given.expires_ms,
        ).SerializeToString()  # fmt: skip

    async def server_in(self, context: "grpc.aio.ServicerContext[Any, Any]") -> str:
        """Which server calls; nodes are sent away."""
        peer = peer_of(context)
        if peer is None or peer.kind != "server":
            await self.send_away(Refusal(grpc.StatusCode.PERMISSION_DENIED, "this is for servers"), context)
        return peer.name


def peer_in(context: "grpc.aio.ServicerContext[Any, Any]") -> Peer:
    """Which node or server is at the other end, as its certificate says. Raises Refusal."""
    peer = peer_of(context)
    if peer is None:
        raise Refusal(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no node and no server")
    return peer


def _name_in(context: "grpc.aio.ServicerContext[Any, Any]") -> str:
    peer = peer_of(context)
    return f"{peer.kind} {peer.name}" if peer is not None else ""


def _renewal(data: bytes) -> pb.Renewal:
    try:
        return pb.Renewal.FromString(data)
    except DecodeError:
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "this is not a request for a certificate") from None
