"""The watch over a real engine: what an earlier life left goes before the node offers containers, and nothing else."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from roost_lab.components.docker import IMAGE, EngineServer

from roost.agent.containers import SWEEP_LOOKS, EngineWatch
from roost.drivers.container.engine import NODE_LABEL, RUN_LABEL, ContainerEngine
from roost.drivers.container.image_cache import ImageCache
from roost.keeper.containers.engine import EngineRefused
from roost.model.spec.runs.container import image_key
from tests.components.docker import KINDS, shared_engine


class Watched:
    """An engine with containers of this node, of another one, and without labels."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.server: EngineServer = shared_engine(kind)
        self.node, self.other = secrets.token_hex(6), secrets.token_hex(6)
        self.live = {"1"}
        self.seen: list[ContainerEngine | None] = []
        self.images = ImageCache(folder / "images.json", 100, lambda token: False)
        self.sockets = [str(folder / "none"), self.server.socket]
        self.watch = EngineWatch(self.node, self.sockets, self.live.__contains__, self.seen.append, self.images)

    def create(self, name: str, labels: dict[str, str], *, starts: bool = False) -> str:
        limits = [{"Name": "nofile", "Soft": 1024, "Hard": 4096}, {"Name": "nproc", "Soft": 4096, "Hard": 4096}]
        host = {"NetworkMode": "none", "Ulimits": limits}
        body = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "Labels": labels, "HostConfig": host}
        made: Any = self.server.client.call("POST", f"/containers/create?name={self.node}-{name}", body)
        if starts:
            self.server.client.call("POST", f"/containers/{made['Id']}/start")
        return str(made["Id"])

    def ours(self, run: str, *, starts: bool = False) -> str:
        return self.create(run, {NODE_LABEL: self.node, RUN_LABEL: run}, starts=starts)

    def left(self) -> set[str]:
        names = [item["Names"][0].lstrip("/") for item in self.server.containers()]
        return {name.removeprefix(f"{self.node}-") for name in names if name.startswith(self.node)}

    def clear(self) -> None:
        for name in self.left():
            self.server.client.call("DELETE", f"/containers/{self.node}-{name}?force=true")


@pytest.fixture(params=KINDS)
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    made = Watched(request.param, tmp_path)
    yield made
    made.clear()


async def test_leftovers_go_before_the_engine_is_offered(watched: Watched) -> None:
    """As after a crash of agent, keeper and host: of runs that have ended, one still runs and one was only created."""
    watched.ours("1", starts=True)
    watched.ours("2", starts=True)
    watched.ours("3")
    watched.create("foreign", {}, starts=True)
    watched.create("other", {NODE_LABEL: watched.other, RUN_LABEL: "2"})
    watched.create("alike", {RUN_LABEL: "2"})
    await watched.watch.begin()
    assert watched.left() == {"1", "foreign", "other", "alike"}
    (engine,) = watched.seen
    assert engine is not None and engine.kind == watched.server.kind and Path(engine.root).is_dir()
    assert watched.images.keys == (), "no start waits for that"
    await watched.watch.look_at_images(engine)
    assert image_key(IMAGE) in watched.images.keys


async def test_what_comes_later_goes_with_one_of_the_next_looks(watched: Watched) -> None:
    await watched.watch.begin()
    watched.ours("5")
    watched.create("foreign", {})
    for _ in range(SWEEP_LOOKS - 1):
        assert watched.left() == {"5", "foreign"}
        await watched.watch.probe()
    assert watched.left() == {"foreign"}
    assert len(watched.seen) == 1, "nothing else has changed"


async def test_an_engine_whose_leftovers_stay_is_not_offered(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lives of a run could overlap."""

    def refuse(*_: object) -> int:
        raise EngineRefused(500, "busy")

    monkeypatch.setattr("roost.agent.containers.remove_orphans", refuse)
    await watched.watch.begin()
    assert watched.seen == []
    monkeypatch.undo()
    await watched.watch.probe()
    assert len(watched.seen) == 1
