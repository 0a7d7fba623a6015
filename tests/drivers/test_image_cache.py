"""Images of a real engine: those of ours go when its disk is full and nothing uses them, and no others."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from roost_lab.components.docker import IMAGE, EngineServer
from roost_lab.components.registry import PASSWORD, USER, Registry

from roost.drivers.container import image_cache
from roost.drivers.container.engine import ContainerEngine, find_engine
from roost.drivers.container.image_cache import ImageCache
from roost.drivers.container.images import ImageFound, ImageUnavailable
from roost.model.records.files import InputProblem
from roost.model.spec.runs.container import ImageWanted, Pull, image_key
from tests.components.docker import KINDS, shared_engine
from tests.components.registry import shared_registry

NEVER_FULL, ALWAYS_FULL = 100, 1


class Bench:
    def __init__(self, kind: str, path: Path) -> None:
        self.server: EngineServer = shared_engine(kind)
        found = find_engine([self.server.socket])
        assert found is not None
        self.engine: ContainerEngine = found
        self.path = path
        self.registry: Registry = shared_registry()
        self.image = f"{self.registry.address}/team/{path.parent.name.lower().replace('_', '-').strip('-')}:1"
        self.registry.push(shared_engine(), IMAGE, self.image)
        self.live: set[int] = set()
        self.steps: list[int] = []

    def cache(self, full_percent: int = ALWAYS_FULL) -> ImageCache:
        return ImageCache(self.path, full_percent, self.live.__contains__)

    def ensure(self, cache: ImageCache, token: int, image: str = "", pull: Pull = Pull.MISSING) -> ImageFound:
        wanted = ImageWanted(image or self.image, pull, USER)
        return cache.ensure(self.engine, token, wanted, PASSWORD, "amd64", self.steps.append, lambda: None)

    def has(self, image: str = "") -> bool:
        found: Any = self.server.client.call("GET", "/images/json")
        names = [name for item in found for name in item.get("RepoTags") or ()]
        return image_key(image or self.image) in map(image_key, names)

    def create(self, image: str) -> str:
        made: Any = self.server.client.call("POST", "/containers/create", {"Image": image, "Cmd": ["true"]})
        return str(made["Id"])


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(request.param, tmp_path / "images.json")
    yield made
    for name in (made.image, f"{made.image}0"):
        if made.has(name):
            made.server.client.call("DELETE", f"/images/{quote(name, safe='/:')}?force=true")


def test_an_image_of_ours_goes_once_nothing_uses_it(bench: Bench) -> None:
    cache = bench.cache()
    bench.live.add(1)
    found = bench.ensure(cache, 1)
    assert found.pulled_ms > 0 and bench.steps[0] == 0
    assert cache.collect(bench.engine) == 0 and bench.has(), "an attempt has it"
    bench.live.clear()
    container = bench.create(found.id)
    assert cache.collect(bench.engine) == 0 and bench.has(), "a container is made of it, also one that does not run"
    bench.server.client.call("DELETE", f"/containers/{container}")
    assert bench.cache(NEVER_FULL).collect(bench.engine) == 0 and bench.has(), "there is room"
    later = bench.cache()  # of another life of the agent
    assert later.collect(bench.engine) == 1
    assert not bench.has()
    assert later.collect(bench.engine) == 0


def test_images_of_others_stay(bench: Bench) -> None:
    cache = bench.cache()
    assert bench.ensure(cache, 1, IMAGE).pulled_ms == 0
    bench.ensure(bench.cache(NEVER_FULL), 2)
    foreign = ImageCache(bench.path.with_name("other.json"), ALWAYS_FULL, bench.live.__contains__)
    bench.ensure(foreign, 3)
    bench.ensure(foreign, 3, pull=Pull.ALWAYS)
    assert foreign.collect(bench.engine) == 0, "it was here before this node wanted it"
    assert bench.has() and bench.has(IMAGE)


def test_an_image_that_got_another_name_stays(bench: Bench) -> None:
    cache = bench.cache()
    bench.ensure(cache, 1)
    repository, _, tag = f"{bench.image}0".rpartition(":")
    name = quote(bench.image, safe="/:")
    bench.server.client.call("POST", f"/images/{name}/tag?repo={quote(repository, safe='')}&tag={tag}")
    assert cache.collect(bench.engine) == 0
    assert bench.has() and bench.has(f"{bench.image}0")


def test_a_node_knows_which_images_it_has(bench: Bench) -> None:
    cache = bench.cache()
    cache.refresh(bench.engine)
    assert image_key(IMAGE) in cache.keys and image_key(bench.image) not in cache.keys
    found = bench.ensure(cache, 1)
    assert cache.keys[0] == image_key(bench.image)
    cache.refresh(bench.engine)
    assert image_key(bench.image) in cache.keys[:3], "those used last come first"
    assert image_key(f"{bench.image.rpartition(':')[0]}@{found.digest}") in cache.keys[:3]


def test_a_full_disk_makes_room_and_tries_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Pull] = []

    def ensure(socket: str, wanted: ImageWanted, *more: Any) -> ImageFound:
        calls.append(wanted.pull)
        if wanted.image != bench.image or len(calls) > 2:
            return ImageFound("sha256:1", "sha256:1")
        problem = InputProblem.IMAGE_NOT_HERE if wanted.pull == Pull.NEVER else InputProblem.DISK_FULL
        raise ImageUnavailable(wanted.image, problem, "no space left on device")

    cache = bench.cache(NEVER_FULL)
    bench.ensure(cache, 1)  # something that can go
    monkeypatch.setattr(image_cache, "ensure_image", ensure)
    other = bench.image
    bench.image = f"{other}2"
    assert bench.ensure(cache, 2).id == "sha256:1"
    assert calls == [Pull.NEVER, Pull.MISSING, Pull.MISSING]
    assert not bench.has(other)
    bench.image = other


def test_a_file_that_cannot_be_read_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "images.json").write_text("{")
    assert ImageCache(tmp_path / "images.json", 1, lambda token: False)._ledger.ours == {}
    os.unlink(tmp_path / "images.json")
