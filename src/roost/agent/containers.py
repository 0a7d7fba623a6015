"""The node's container engine, watched: it comes and goes, and containers that no run has are removed."""

import asyncio
from collections.abc import Callable, Sequence

from roost.agent.files.job import in_thread
from roost.agent.log import log
from roost.drivers.container.engine import ContainerEngine, find_engine, remove_orphans
from roost.drivers.container.image_cache import ImageCache
from roost.keeper.containers.engine import EngineAway, EngineRefused

LOOK_S = 10.0  # between two looks whether the engine answers
SWEEP_LOOKS = 30  # looks between two sweeps of orphans, which only a race or a crash leaves
IMAGE_LOOKS = 3  # looks between two at its images and its disk
FIRST_S_MAX = 30.0  # an engine with thousands of leftovers; after that the node works without containers at first


class EngineWatch:
    """`changed` is called with the engine when another one answers, or none. `is_live` tells of a run by its id."""

    def __init__(
        self, node: str, sockets: Sequence[str], is_live: Callable[[str], bool],
        changed: Callable[[ContainerEngine | None], None], images: ImageCache,
    ) -> None:  # fmt: skip
        self._node = node
        self._sockets = sockets
        self._is_live = is_live
        self._changed = changed
        self._images = images
        self._engine: ContainerEngine | None = None
        self._looks = 0

    async def begin(self) -> None:
        """Before the node takes work: what an earlier life left running may be given to another node by then."""
        try:
            async with asyncio.timeout(FIRST_S_MAX):
                await self.probe()
        except TimeoutError:
            log("the container engine does not answer; this node offers no containers until it does")

    async def run(self) -> None:
        looks = 0
        while True:
            if self._engine is not None and looks % IMAGE_LOOKS == 0:
                await self.look_at_images(self._engine)
            looks += 1
            await asyncio.sleep(LOOK_S)
            await self.probe()

    async def probe(self) -> None:
        if not self._sockets:
            return
        engine = await in_thread("engine", lambda: find_engine(self._sockets))
        is_new = engine is not None and engine != self._engine
        self._looks += 1
        if engine is not None and (is_new or self._looks % SWEEP_LOOKS == 0):
            engine = await self._sweep(engine)
        if engine != self._engine:
            self._engine = engine
            log(f"containers: {engine.kind} {engine.version}" if engine else "containers: no engine answers")
            self._changed(engine)

    async def look_at_images(self, engine: ContainerEngine) -> None:
        try:
            removed = await in_thread("images", lambda: self._images.collect(engine))
            await in_thread("images", lambda: self._images.refresh(engine))
        except (EngineAway, EngineRefused) as error:
            log(f"the images of this node are not known: {error}")
            return
        if removed:
            log(f"the disk of the container engine is nearly full: {removed} images that nothing uses were removed")

    async def _sweep(self, engine: ContainerEngine) -> ContainerEngine | None:
        """The engine, if it has done so: without, two lives of a run could overlap."""
        try:
            removed = await in_thread("orphans", lambda: remove_orphans(engine, self._node, self._is_live))
        except (EngineAway, EngineRefused) as error:
            log(f"containers that were left cannot be removed: {error}")
            return None
        if removed:
            log(f"{removed} containers without a run were removed")
        return engine
