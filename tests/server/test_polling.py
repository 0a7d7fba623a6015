"""gRPC's poller thread, in a process of its own: elsewhere another test may have made its socket."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, os, socket, sys
from pathlib import Path
from roost.server.app import serve
from roost.server.config import ServerConfig

make, made = socket.socketpair, []

def recorded(*arguments, **options):
    made.append(make(*arguments, **options))
    return made[-1]

async def main():
    before = socket.socketpair = recorded
    stopping = asyncio.Event()
    config = ServerConfig(data=Path(sys.argv[1]), store="memory", port=0, agents_port=0, admin_token="t" * 32)

    def ready(*ports):
        open_here = [writing.fileno() for _, writing in made if writing.fileno() >= 0]  # not that of the fork server
        print(len(open_here), [os.get_blocking(writing) for writing in open_here])
        assert socket.socketpair is before
        stopping.set()

    await serve(config, ready, stopping)

asyncio.run(main())
"""


def test_the_poller_of_grpc_never_waits_for_the_loop(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["1 [False]"]), done.stderr
