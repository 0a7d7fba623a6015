"""The node's side of tunnels: which a node is to open, and the stream of each."""

import asyncio

import grpc

from roost.server.agents.authentication import AgentAuthenticator, GrpcRefusal, parsed, refusing
from roost.server.tunnels.tunnels import TunnelBroker
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_tunnel

FIRST_S_MAX = 5.0
NO_TUNNEL = "this is no frame of a tunnel"


def tunnel_handlers(tunnels: TunnelBroker, door: AgentAuthenticator) -> dict[str, grpc.RpcMethodHandler]:
    async def take(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            node = (await door.admit(context)).node
        except GrpcRefusal as refusal:
            await door.refuse(refusal, context)
        return pb.TakeTunnelsReply(tunnels=map(pack_tunnel, tunnels.take(node))).SerializeToString()

    async def serve(_: object, context: grpc.aio.ServicerContext) -> None:
        async def read() -> bytes | None:
            data = await context.read()
            return None if data is grpc.aio.EOF else parsed(pb.TunnelFrame, data, NO_TUNNEL).data

        async def write(data: bytes) -> None:
            await context.write(pb.TunnelFrame(data=data).SerializeToString())

        try:
            node = (await door.admit(context)).node
            with refusing():
                await tunnels.serve_node(node, await _first(context), read, write)
        except GrpcRefusal as refusal:
            await door.refuse(refusal, context)

    return {
        "TakeTunnels": grpc.unary_unary_rpc_method_handler(take),
        "Tunnel": grpc.stream_stream_rpc_method_handler(serve),
    }


async def _first(context: grpc.aio.ServicerContext) -> str:
    """The id of the tunnel. Raises GrpcRefusal."""
    try:
        async with asyncio.timeout(FIRST_S_MAX):
            data = await context.read()
    except TimeoutError:
        raise GrpcRefusal(grpc.StatusCode.DEADLINE_EXCEEDED, "no id of a tunnel came") from None
    return parsed(pb.TunnelFrame, b"" if data is grpc.aio.EOF else data, NO_TUNNEL).id
