"""Shipping: log bytes from agents over gRPC. ingest_machine.py decides which are accepted."""

import asyncio
from collections.abc import Container

import grpc

from roost.model.errors import NoService
from roost.model.protocol import Hello, LogChunk
from roost.ports.logs import LogsUnavailable
from roost.server.agents.authentication import AgentAuthenticator, GrpcRefusal, parsed
from roost.server.agents.ingest_machine import Admission, IngestMachine, StreamListings, owner_of
from roost.server.engine.engine import Engine
from roost.server.logs.hub import LogHub
from roost.server.logs.machine import ENOUGH
from roost.server.observability import logging
from roost.server.pki.certificates import NodeCredential
from roost.wire import agent_pb2 as pb

NO_CHUNKS = "these are not chunks of logs"

log = logging.logger("shipping")


class Shipping:
    def __init__(self, engine: Engine, logs: LogHub, connected: Container[str]) -> None:
        self._engine = engine
        self._logs = logs
        self._machine = IngestMachine(lambda: engine.state, connected, self._leads)
        self._refused = logging.RateLimitedLogger("shipping")

    def _leads(self) -> bool:
        leadership = self._engine.leadership
        return self._engine.ready and (leadership is None or leadership.is_sure())

    def hello(self, hello: Hello) -> None:
        self._machine.hello(hello)

    async def serve(
        self, status: NodeCredential, door: AgentAuthenticator, context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        """One stream; each batch is answered with how far each of its logs is kept, and how far it is durable."""
        listings = StreamListings()
        while (data := await context.read()) is not grpc.aio.EOF:
            door.check(status)
            batch = parsed(pb.LogChunks, data, NO_CHUNKS).chunks
            chunks = [LogChunk(sent.log, sent.offset, sent.data) for sent in batch]
            admitted = [chunk for chunk in chunks if self._admits(status.node, chunk)]
            await self._list_segments(listings.due(admitted))
            wanted = set(map(id, admitted))
            sizes = [self._keep(chunk) if id(chunk) in wanted else _refused(chunk.log) for chunk in chunks]
            await context.write(pb.LogSizes(sizes=sizes).SerializeToString())

    def _admits(self, node: str, chunk: LogChunk) -> bool:
        match self._machine.admit(node, chunk):
            case Admission.NO_LOG:
                raise GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, f"{chunk.log!r:.200} at {chunk.offset} is no log")
            case Admission.TOO_EARLY:
                raise GrpcRefusal(
                    grpc.StatusCode.UNAVAILABLE, "this server does not know this log, or does not lead; try again"
                )
            case Admission.NOT_ITS_OWN:
                owner = owner_of(self._engine.state, chunk.log) or "unknown"
                self._refused.warning("log refused: it is not of this node", node=node, log=chunk.log, owner=owner)
                return False
        return True

    async def _list_segments(self, names: list[str]) -> None:
        try:
            await asyncio.gather(*(self._logs.list_segments(name, again=True) for name in names))
        except NoService as error:
            raise GrpcRefusal(grpc.StatusCode.UNAVAILABLE, str(error)) from None

    def _keep(self, chunk: LogChunk) -> pb.LogSize:
        size = self._logs.append(chunk.log, chunk.offset, chunk.data)
        if isinstance(size, LogsUnavailable):
            log.error("log not kept", log=chunk.log, error=size.reason)
            raise GrpcRefusal(grpc.StatusCode.UNAVAILABLE, f"the log cannot be kept: {size.reason}")
        return pb.LogSize(log=chunk.log, size=size, durable=self._logs.durable(chunk.log))


def _refused(name: str) -> pb.LogSize:
    return pb.LogSize(log=name, size=ENOUGH, durable=ENOUGH)
