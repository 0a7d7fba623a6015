"""Images on a node: who uses them, which are ours, and which go when the disk of the engine is nearly full.

Ours are those that this node fetched for a run and that were not there before. They are remembered in a file, so that
a later agent knows them. All others, and those with names that no document gave them, belong to others and stay.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import msgspec

from roost.drivers.container.engine import ContainerEngine
from roost.drivers.container.image_ledger import ImageLedger, OwnImage
from roost.drivers.container.images import ImageFound, ImageUnavailable, Progress, ensure_image
from roost.keeper.containers.engine import EngineAway, EngineClient, EngineRefused
from roost.model.limits import IMAGES_REPORTED_MAX
from roost.model.records.files import InputProblem
from roost.model.spec.runs.container import ImageWanted, Pull, image_key

CALL_S_MAX = 60.0  # a busy engine takes seconds to remove an image
REMOVED_MAX = 50  # in one turn
HYSTERESIS = 5  # percent of the disk that are freed beyond the limit, so that it is not reached at once again


class ImageCache:
    """Methods block, and may be called from several threads."""

    def __init__(self, path: Path, full_percent: int, is_live: Callable[[int], bool]) -> None:
        """`full_percent` of the engine's disk: above it, images go. `is_live`: whether an attempt needs its image."""
        self._path = path
        self._full_percent = full_percent
        self._is_live = is_live
        self._lock = threading.Lock()  # an image is not removed between the moment it is found and its first use
        self._ledger = ImageLedger(_read(path))
        self.keys: tuple[int, ...] = ()  # of the images on this node, as the servers know them

    def ensure(
        self, engine: ContainerEngine, token: int, wanted: ImageWanted, password: str, architecture: str,
        progress: Progress, check: Callable[[], None],
    ) -> ImageFound:  # fmt: skip
        """Have the image of an attempt on the node. Raises ImageUnavailable."""

        def found(pull: Pull) -> ImageFound:
            asked = msgspec.structs.replace(wanted, pull=pull)
            return ensure_image(engine.socket, asked, password, architecture, progress, check)

        if wanted.pull != Pull.ALWAYS:
            with suppress(ImageUnavailable), self._lock:
                return self._used(token, wanted.image, found(Pull.NEVER), is_ours=False)
        before = _ids(engine) if wanted.pull != Pull.NEVER else set()
        try:
            image = found(wanted.pull)
        except ImageUnavailable as unavailable:
            if unavailable.problem != InputProblem.DISK_FULL or not self.collect(engine, at_once=True):
                raise
            image = found(wanted.pull)
        with self._lock:
            return self._used(token, wanted.image, image, is_ours=image.id not in before)

    def collect(self, engine: ContainerEngine, *, at_once: bool = False) -> int:
        """Remove images of ours that nothing uses, the longest unused first, while the disk is too full."""
        removed, goal = 0, self._full_percent - (0 if at_once else HYSTERESIS)
        if not at_once and _full(engine) < self._full_percent:
            return 0
        with self._lock:
            removable = self._ledger.removable(self._is_live)
        for id in removable[:REMOVED_MAX]:
            if removed and _full(engine) < goal:
                break
            removed += self._remove(engine, id)
        return removed

    def refresh(self, engine: ContainerEngine) -> None:
        """Take in which images are here. Raises EngineAway and EngineRefused."""
        found = cast(list[dict[str, Any]], EngineClient(engine.socket, CALL_S_MAX).call("GET", "/images/json") or [])
        with self._lock:
            ours = dict(self._ledger.ours)
        newest = sorted(found, key=lambda item: (-_used_at(ours, item), -int(item.get("Created") or 0)))
        names = [name for item in newest for name in (*(item.get("RepoTags") or ()), *(item.get("RepoDigests") or ()))]
        self.keys = tuple(dict.fromkeys(image_key(name) for name in names if "<none>" not in name))[
            :IMAGES_REPORTED_MAX
        ]

    def _used(self, token: int, name: str, image: ImageFound, *, is_ours: bool) -> ImageFound:
        self.keys = tuple(dict.fromkeys((image_key(name), *self.keys)))[:IMAGES_REPORTED_MAX]
        if self._ledger.used(token, image.id, name, time.time(), is_ours=is_ours):
            self._write()
        return image

    def _remove(self, engine: ContainerEngine, id: str) -> bool:
        """An engine refuses for images that any container has, also one that has ended."""
        client = EngineClient(engine.socket, CALL_S_MAX)
        with self._lock:
            if id not in self._ledger.removable(self._is_live):
                return False
            try:
                found = cast(dict[str, Any], client.call("GET", f"/images/{quote(id, safe=':')}/json") or {})
                ours = set(map(image_key, self._ledger.ours[id].names))
                if {image_key(name) for name in found.get("RepoTags") or ()} - ours:
                    return False  # it has a name that we did not give it
                client.call("DELETE", f"/images/{quote(id, safe=':')}")
            except EngineAway:
                return False
            except EngineRefused as refused:
                if refused.status != 404:
                    return False
            del self._ledger.ours[id]
            self._write()
            return True

    def _write(self) -> None:
        draft = self._path.with_suffix(".new")
        with suppress(OSError):  # of a full disk: what is forgotten is never removed
            draft.write_bytes(msgspec.json.encode(self._ledger.ours))
            os.replace(draft, self._path)


def _read(path: Path) -> dict[str, OwnImage]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, OwnImage])
    except (OSError, msgspec.MsgspecError):
        return {}


def _ids(engine: ContainerEngine) -> set[str]:
    """Also of images without a name, and of layers between images."""
    try:
        found = EngineClient(engine.socket, CALL_S_MAX).call("GET", "/images/json?all=true")
    except (EngineAway, EngineRefused) as error:
        raise ImageUnavailable("", InputProblem.ENGINE_AWAY, str(error)) from None
    return {str(item.get("Id")) for item in cast(list[dict[str, Any]], found or [])}


def _used_at(ours: dict[str, OwnImage], item: dict[str, Any]) -> float:
    own = ours.get(str(item.get("Id")))
    return own.used_at if own is not None else 0.0


def _full(engine: ContainerEngine) -> int:
    """Percent of the engine's disk that are in use; 0: that cannot be seen from here."""
    try:
        disk = os.statvfs(engine.root)
    except OSError:
        return 0
    return 100 - disk.f_bavail * 100 // max(1, disk.f_blocks)
