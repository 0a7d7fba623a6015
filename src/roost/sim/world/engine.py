"""The container engine of a simulated host: images that come slowly or not at all, and containers that are left over.

What it has is on its disk: it outlives keepers, agents and hosts. All rules about it are the product's.
"""

from typing import Any

from roost.drivers.container import engine
from roost.drivers.container.engine import NODE_LABEL, RUN_LABEL, ContainerEngine
from roost.drivers.container.image_ledger import ImageLedger, OwnImage
from roost.drivers.container.images import FINAL
from roost.model.records.files import InputFailure, InputProblem
from roost.sim.world.world import SideChance, World, Wrong

ABSENT = "absent:1"  # an image that no registry has
PULL_MS = ((20, 300), (300, 3_000), (3_000, 12_000))  # a small image, a large one, a slow registry
FAILS = 0.15  # of pulls, while there are faults
LEFT = 0.1  # of containers stay when their run ends: a call of its creation came too late
DISK_FULL = 0.5  # of looks at the disk
FOREIGN = ({"Id": "foreign", "Labels": {}}, {"Id": "other", "Labels": {NODE_LABEL: "other", RUN_LABEL: "1"}})
PASSING = (InputProblem.REGISTRY_UNREACHABLE, InputProblem.DISK_FULL, InputProblem.ENGINE_FAILED)
AWAY = InputFailure(InputProblem.ENGINE_AWAY)


class SimulatedEngine:
    def __init__(self, chance: SideChance, node: str) -> None:
        self._chance = chance
        self.node = node
        self.up = True
        self.calm = False  # faults have ended
        self.images: set[str] = {"foreign:1"}
        self.containers: dict[str, dict[str, Any]] = {str(item["Id"]): item for item in FOREIGN}
        self.running: dict[int, str] = {}  # attempts whose containers run, and their images
        self._fetched: set[str] = set()  # images that came for a run
        self.remembered: dict[str, OwnImage] = {}  # the file of the agent
        self.ledger = ImageLedger(self.remembered)

    def fail(self, for_ms: int, world: World) -> None:
        """What runs goes on; nothing can begin."""
        if self.up and not self.calm:
            self.up = False
            world.after(for_ms, self.repair)

    def repair(self) -> None:
        self.up = True

    def found(self) -> ContainerEngine | None:
        return ContainerEngine("/engine.sock", "docker", "20") if self.up else None

    # images

    def pull_ms(self, image: str) -> int:
        if image in self.images:
            return self._chance.between(1, 20)
        return self._chance.between(*PULL_MS[0 if self.calm else self._chance.between(0, 2)])

    def pulled(self, token: int, image: str, now_ms: int) -> InputFailure | None:
        """The end of a pull."""
        if not self.up:
            return AWAY
        is_ours = image not in self.images
        if image == ABSENT:
            return InputFailure(InputProblem.IMAGE_NOT_FOUND, image, is_final=InputProblem.IMAGE_NOT_FOUND in FINAL)
        if is_ours and not self.calm and self._chance.happens(FAILS):
            return InputFailure(PASSING[self._chance.between(0, len(PASSING) - 1)], image)
        if is_ours:
            self.images.add(image)
            self._fetched.add(image)
        self.ledger.used(token, image, image, now_ms / 1_000, is_ours=is_ours)
        return None

    def begin_agent(self) -> None:
        """Another agent knows what was remembered, and not who uses what."""
        self.ledger = ImageLedger(self.remembered)

    def make_room(self, known: Any) -> None:
        """As an agent does when the disk is full. The engine refuses for images that containers have."""
        if not self.up or not self._chance.happens(DISK_FULL):
            return
        for id in self.ledger.removable(known):
            if id not in self.running.values():
                if id not in self._fetched:
                    raise Wrong(f"an image of others was removed: {id}")
                self.images.discard(id)
                self._fetched.discard(id)
                del self.remembered[id]

    # containers

    def started(self, token: int, image: str) -> str:
        """Its problem; nothing: it runs."""
        if not self.up:
            return "the engine does not answer"
        if image not in self.images:
            raise Wrong(f"the container of attempt {token} begins without its image {image}")
        self.running[token] = image
        self.containers[str(token)] = {"Id": str(token), "Labels": {NODE_LABEL: self.node, RUN_LABEL: str(token)}}
        return ""

    def ended(self, token: int) -> None:
        if self.running.pop(token, None) is not None and not self._chance.happens(LEFT):
            self.containers.pop(str(token), None)

    def lose_power(self) -> None:
        """Nothing runs; what there was is still listed."""
        self.running.clear()

    def sweep(self, is_live: Any) -> None:
        for id in engine.orphans(self.containers.values(), self.node, is_live):
            del self.containers[id]
            if not id.isdecimal() or id in map(str, self.running):
                raise Wrong(f"container {id} was removed, which is live or of others")
        if not {str(item["Id"]) for item in FOREIGN} <= set(self.containers):
            raise Wrong("a container of others was removed")

    def left(self) -> list[str]:
        """Containers of no run."""
        foreign = [str(item["Id"]) for item in FOREIGN]
        return [id for id in self.containers if id not in foreign and int(id) not in self.running]
