"""One agent service in this process, with a fake driver, in real time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from roost.agent.connection.identity import NodeIdentity
from roost.agent.service import Service
from roost.drivers.fake import FakeDriver, Script, at_once
from roost.keeper.clock import now_ms
from roost.model.protocol import Usage
from roost.model.records.enrolment import Bundle
from roost.model.records.node import Facts
from roost.ports.driver import Event, RunRequest, StopReason
from tests.certified import node_bundle
from tests.server.gateway_server import DEADLINE_S

USAGE = Usage(250, 1 << 20, 2 << 20)


class PacedDriver(FakeDriver):
    """The twin on the loop's own time: what is due happens when it is due. Remembers every order."""

    def __init__(self, script: Script) -> None:
        super().__init__(self._pass_on, script, now_ms())
        self.orders: list[tuple[Any, ...]] = []
        self.listener: Callable[[Event], None] | None = None
        self._timer: asyncio.Handle | None = None

    def _pass_on(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)

    def start(self, run: RunRequest) -> None:
        self._order("start", run.id)
        Path(run.log).touch()
        super().start(run)

    def stop(self, id: str, grace_ms: int, why: StopReason, detail: str = "") -> None:
        self._order("stop", id, grace_ms, why, detail)
        super().stop(id, grace_ms, why, detail)

    def forget(self, id: str) -> None:
        self._order("forget", id)
        super().forget(id)

    def lease(self, until_ms: int) -> None:
        self._order("lease")
        super().lease(until_ms)

    def attach(self, listener: Callable[[Event], None]) -> None:
        """A new agent: it learns everything there is."""
        self.listener = listener
        listener(self.connect())

    def did(self, what: str) -> list[tuple[Any, ...]]:
        """The orders of one kind, without their name."""
        return [order[1:] for order in self.orders if order[0] == what]

    def _order(self, *order: Any) -> None:
        self.orders.append(order)
        self.now = max(self.now, now_ms())
        self._arrange(0)

    def _arrange(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._pass)

    def _pass(self) -> None:
        self.advance(now_ms())
        at = self.next_at()
        if at is not None:
            self._arrange(max(0, at - now_ms()) / 1_000)


@asynccontextmanager
async def agent(
    port: int, folder: Path, name: str = "n1", *, driver: PacedDriver | None = None, script: Script = at_once,
    identity: str = "", bundle: Bundle | None = None, **facts: Any,
) -> AsyncIterator[tuple[Service, PacedDriver]]:  # fmt: skip
    """An agent that serves as long as the block, and then is gone like one that was killed."""
    driver = driver or PacedDriver(script)
    offer = Facts(**{"resources": {"cpu": 4_000}, **facts})
    service = Service(str(folder), name, identity or f"machine-{name}", offer, f"127.0.0.1:{port}", lambda: USAGE)
    folder.mkdir(exist_ok=True)
    if bundle is not None or not NodeIdentity(str(folder)).exists():
        NodeIdentity(str(folder)).write(bundle or node_bundle(name))
    service.driver = driver
    driver.attach(service.reported)
    task = asyncio.ensure_future(service.run())
    try:
        yield service, driver
    finally:
        driver.listener = None
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]


async def until(holds: Callable[[], Any], what: str = "") -> Any:
    """Wait until something holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what or holds}"
        await asyncio.sleep(0.003)
    return found
