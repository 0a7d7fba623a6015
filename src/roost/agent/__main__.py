"""`python -m roost.agent`: an agent as its keeper starts it. Ends by SIGTERM, or when the keeper is gone."""

import asyncio
import gc
import os
import signal
import sys
import time
from functools import partial

import uvloop

from roost import __version__
from roost.agent.config import AgentOptions, read_identity, read_life, read_options
from roost.agent.host.fingerprint import UsageMeter, facts
from roost.agent.isolation import RunIsolation, chosen_level
from roost.agent.log import log
from roost.agent.service import Service
from roost.allocation import keep_freed_memory
from roost.drivers.process import ProcessDriver
from roost.keeper.clock import now_ms
from roost.keeper.processes import AGENT_MARK, MARK, PORTS_MARK, kill_leftovers
from roost.keeper.socket import PROTOCOL
from roost.model.errors import Invalid
from roost.ports.driver import Event, KnownRuns

WRONG_USAGE = 2
KEEPER_GONE = 3
OTHER_KEEPER = 4
ORPHANED_S_MAX = 0.2  # a process that ends closes its sockets a moment before its children get another parent


def main() -> int:
    try:
        options = read_options(sys.argv[1:], dict(os.environ))
        socket_path = os.environ.get(AGENT_MARK, "")
        isolation, why = chosen_level(options.isolation)
        if not socket_path:
            raise Invalid(AGENT_MARK, "an agent is started by its keeper: `roost agent`")
    except Invalid as error:
        log(str(error))
        return WRONG_USAGE
    os.makedirs(options.directory, mode=0o700, exist_ok=True)
    keep_freed_memory()
    log(f"isolation of runs: {isolation}{f' ({why})' if why else ''}")
    uvloop.run(_live(options, RunIsolation(options.directory, isolation, options.uids), socket_path, os.getppid()))
    return 0


async def _live(options: AgentOptions, isolation: RunIsolation, socket_path: str, keeper: int) -> None:
    directory = options.directory
    meter = UsageMeter(directory, options.share)
    service = Service(
        directory=directory,
        name=options.name,
        identity=f"{read_identity(directory)}/{read_life(directory, keeper)}",
        facts=facts(
            directory,
            options.wishes,
            options.share,
            options.number,
            ports=os.environ.get(PORTS_MARK, ""),
            isolation=isolation.level,
            users=isolation.has_users,
        ),
        isolation=isolation.of,
        server=options.server,
        usage=lambda: meter.usage(now_ms()),
        input_cache_bytes=options.input_cache_bytes,
        engine_sockets=options.engine_sockets,
        volumes=options.volumes,
        qemu=options.qemu,
        machines=options.machines,
        image_disk_percent=options.image_disk_percent,
    )
    driver = ProcessDriver(partial(_report, service), lambda: _keeper_gone(keeper))
    service.driver = driver
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stop)
    await driver.connect(socket_path)
    gc.freeze()
    await service.run()
    driver.close()


def _report(service: Service, event: Event) -> None:
    """To the service. A keeper of another protocol gets no orders: it would follow them in part."""
    if isinstance(event, KnownRuns) and event.protocol != PROTOCOL:
        theirs = f"the keeper (roost {event.software or 'of an older release'}) speaks keeper protocol {event.protocol}"
        mine = f"this agent (roost {__version__}) speaks {PROTOCOL}"
        log(f"{theirs}, {mine}; install the same release again, or drain the node and restart `roost agent`")
        os._exit(OTHER_KEEPER)  # the keeper starts us again, perhaps as the release that it understands
    service.reported(event)


def _keeper_gone(keeper: int) -> None:
    """The keeper is dead, and nothing watches over what it started: end that. Or another agent has taken our place."""
    deadline = time.monotonic() + ORPHANED_S_MAX
    while os.getppid() == keeper and time.monotonic() < deadline:
        time.sleep(0.005)
    if os.getppid() == keeper:
        log("another agent has taken our place at the keeper")
    else:
        killed = kill_leftovers(os.environ.get(MARK, ""))
        log(f"the keeper is gone; {killed} processes that it had started were killed")
    os._exit(KEEPER_GONE)


if __name__ == "__main__":
    sys.exit(main())
