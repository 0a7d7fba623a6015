"""Shipping: log bytes from agents over gRPC. ingest_machine.py decides which are accepted."""

from collections.abc import Container

import grpc

from roost.model.protocol import Hello, LogChunk
from roost.ports.logs import LogsUnavailable
from roost.server.agents.authentication import AgentAuthenticator, GrpcRefusal, parsed
from roost.server.agents.ingest_machine import Admission, IngestMachine, owner_of
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
        """One stream; each batch is answered with how far each of its logs is kept."""
        while (data := await context.read()) is not grpc.aio.EOF:
            door.check(status)
            sizes = [self._keep(status.node, chunk) for chunk in parsed(pb.LogChunks, data, NO_CHUNKS).chunks]
            await context.write(pb.LogSizes(sizes=sizes).SerializeToString())

    def _keep(self, node: str, sent: pb.LogChunk) -> pb.LogSize:
        chunk = LogChunk(sent.log, sent.offset, sent.data)
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
                return pb.LogSize(log=chunk.log, size=ENOUGH)
        size = self._logs.append(chunk.log, chunk.offset, chunk.data)
        if isinstance(size, LogsUnavailable):
            log.error("log not kept", log=chunk.log, error=size.reason)
            raise GrpcRefusal(grpc.StatusCode.UNAVAILABLE, f"the log cannot be kept: {size.reason}")
        return pb.LogSize(log=chunk.log, size=size)
