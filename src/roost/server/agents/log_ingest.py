"""Shipping: log bytes from agents. A node ships the logs of attempts that were its own, and no others.

Whose an attempt was is what the state says: where the instance is, or where its story says that it was placed. A server
that has forgotten everything believes what a node says in its hello, as long as nothing is known that says otherwise.
"""

from collections.abc import Container

import grpc

from roost.core.state.state import State
from roost.model.protocol import Hello
from roost.ports.blobs import BlobsUnavailable
from roost.server.agents.authentication import AgentAuthenticator, GrpcRefusal, parsed
from roost.server.agents.log_store import ENOUGH, LogHub
from roost.server.agents.validation import LOG_NAME
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.certificates import NodeCredential
from roost.wire import agent_pb2 as pb

NO_CHUNKS = "these are not chunks of logs"

log = logging.logger("shipping")


class Shipping:
    def __init__(self, engine: Engine, logs: LogHub, connected: Container[str]) -> None:
        self._engine = engine
        self._logs = logs
        self._connected = connected  # nodes whose hello was accepted
        self._refused = logging.RateLimitedLogger("shipping")
        self._named: dict[str, frozenset[str]] = {}  # node -> logs of its hello of which the state knows nothing

    def hello(self, hello: Hello) -> None:
        """A node registers with the attempts it holds: remember those that the state does not know."""
        names = [f"{run.workload}/{run.serial}/{run.index}.{run.attempt}" for run, _ in hello.runs]
        unknown = frozenset(name for name in names if owner_of(self._engine.state, name) is None)
        if unknown and self._engine.state.settings.adopts:
            self._named[hello.node] = unknown
        else:
            self._named.pop(hello.node, None)

    async def serve(
        self, status: NodeCredential, door: AgentAuthenticator, context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        """One stream; each batch is answered with how far each of its logs is kept."""
        while (data := await context.read()) is not grpc.aio.EOF:
            door.check(status)
            sizes = [self._keep(status.node, chunk) for chunk in parsed(pb.LogChunks, data, NO_CHUNKS).chunks]
            await context.write(pb.LogSizes(sizes=sizes).SerializeToString())

    def _keep(self, node: str, chunk: pb.LogChunk) -> pb.LogSize:
        if LOG_NAME.fullmatch(chunk.log) is None or chunk.offset < 0:
            raise GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, f"{chunk.log!r:.200} at {chunk.offset} is no log")
        owner = owner_of(self._engine.state, chunk.log)
        if owner is None and node not in self._connected:
            # A server without memory learns from the hello what the node ran: no answer before that is final.
            raise GrpcRefusal(grpc.StatusCode.UNAVAILABLE, "this node has not registered here yet; try again")
        if owner != node and (owner is not None or chunk.log not in self._named.get(node, ())):
            # Nothing of it is wanted; the agent goes on with its other logs.
            message = "log refused: it is not of this node"
            self._refused.warning(message, node=node, log=chunk.log, owner=owner or "unknown")
            return pb.LogSize(log=chunk.log, size=ENOUGH)
        size = self._logs.append(chunk.log, chunk.offset, chunk.data)
        if isinstance(size, BlobsUnavailable):
            log.error("log not kept", log=chunk.log, error=size.reason)
            raise GrpcRefusal(grpc.StatusCode.UNAVAILABLE, f"the log cannot be kept: {size.reason}")
        return pb.LogSize(log=chunk.log, size=size)


def owner_of(state: State, name: str) -> str | None:
    """The node that the attempt of a log was on; None: nothing is known of it."""
    found = LOG_NAME.fullmatch(name)
    if found is None:
        return None
    project, workload, serial, index, attempt = found.groups()
    key, number = f"{project}/{workload}", int(attempt)
    existing, instance = state.workloads.get(key), state.instances.get(f"{key}.{int(index)}")
    if existing is None or instance is None or existing.serial != int(serial) or not 0 < number <= instance.attempt:
        return None
    if number == instance.attempt and instance.node:
        return instance.node
    return next((line.node for line in instance.story if line.attempt == number and line.node), None)
