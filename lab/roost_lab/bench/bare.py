"""A bare gRPC server: what a returning agent costs without Roost. The base of `return_cpu_over_bare`.

`python -m roost_lab.bench.bare DATA HOST:PORT COUNT` listens with the certificate in DATA and the options of the
agents' port. It answers COUNT hellos with the same welcome each, and prints the CPU seconds that this took.
"""

import asyncio
import sys
import time
from pathlib import Path

import grpc
import uvloop

from roost.model.protocol import Welcome
from roost.model.records.enrolment import read_bundle
from roost.server.agents.gateway import OPTIONS, SERVICE
from roost.server.pki.tls import FILE
from roost.wire.codec import pack_server

LEASE_MS = 60_000  # no heartbeats meanwhile


async def main(data: str, address: str, count: int) -> None:
    bundle = read_bundle(Path(data, FILE).read_text())
    welcome = pack_server(Welcome(1, 0, LEASE_MS, 1)).SerializeToString()
    welcomed = asyncio.Semaphore(0)

    async def connect(_: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        await context.read()
        await context.write(welcome)
        welcomed.release()
        while await context.read() is not grpc.aio.EOF:
            pass

    server = grpc.aio.server(options=OPTIONS)
    handlers = {"Connect": grpc.stream_stream_rpc_method_handler(connect)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    pair, roots = (bundle.key.encode(), bundle.certificate.encode()), bundle.authority.encode()
    server.add_secure_port(address, grpc.ssl_server_credentials([pair], roots, require_client_auth=True))
    await server.start()
    began = time.process_time()
    print("connected", flush=True)
    for _ in range(count):
        await welcomed.acquire()
    print(time.process_time() - began, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
