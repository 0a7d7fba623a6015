"""Caches of projects: what runs get and save, which entries make room, and what cannot be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.core.caches import evicted, find
from roost.core.state.counts import named_files_are_counted
from roost.model.errors import RoostError
from roost.model.events import DeleteCaches, RestoreCache, SaveCache, SetProject
from roost.model.limits import CACHE_BYTES_MAX, CACHE_ENTRIES_MAX
from roost.model.reasons.caching import CacheHit, CacheMiss, CacheSaved, CacheUnused
from roost.model.records.cache import CacheEntry, CacheFound, CacheProblem
from roost.model.records.files import FileSet
from roost.model.records.project import FILE_BYTES, Project
from tests.core.scene import Scene, job


def files(number: int, size: int = 100) -> FileSet:
    return FileSet(f"sha256:{number:064x}", 1, size)


def running(*names: str) -> Scene:
    scene = Scene("a")
    scene.submit(*[job(name, cache={"key": "k", "paths": ["x"]}) for name in names])
    scene.running(*[f"{name}.0" for name in names])
    return scene


def reply_to(scene: Scene, event: Any) -> Any:
    (reply,) = scene.step(event).replies
    assert not list(named_files_are_counted(scene.state))
    return reply.value


def token(scene: Scene, name: str = "one") -> int:
    return scene.instance(f"{name}.0").token


def save(scene: Scene, key: str, found: FileSet, name: str = "one") -> Any:
    return reply_to(scene, SaveCache(1, "a", token(scene, name), key, found))


def restore(scene: Scene, key: str, *prefixes: str, name: str = "one") -> Any:
    return reply_to(scene, RestoreCache(1, "a", token(scene, name), key, prefixes))


def story(scene: Scene, name: str = "one") -> list[Any]:
    reasons = [line.reason for line in scene.instance(f"{name}.0").story]
    return [reason for reason in reasons if isinstance(reason, CacheHit | CacheMiss | CacheSaved | CacheUnused)]


def test_what_a_run_saves_a_later_one_gets_and_their_stories_have_it() -> None:
    scene = running("one", "two")
    assert restore(scene, "pip-1") is None
    assert save(scene, "pip-1", files(1)) is None
    assert restore(scene, "pip-1", name="two") == CacheFound("pip-1", files(1))
    assert story(scene) == [CacheMiss("pip-1"), CacheSaved("pip-1", 100)]
    assert story(scene, "two") == [CacheHit("pip-1", 100)]
    assert scene.state.file_sets == {"default": {files(1): 1}}
    scene.restart()
    assert scene.state.caches["default"]["pip-1"].files == files(1)
    assert not list(named_files_are_counted(scene.state))


def test_the_first_of_two_that_save_a_key_wins() -> None:
    scene = running("one", "two")
    assert save(scene, "k", files(1)) is None
    assert save(scene, "k", files(2), "two") == CacheProblem.EXISTS
    assert scene.state.caches["default"]["k"].files == files(1)
    assert story(scene, "two") == [CacheUnused("k", CacheProblem.EXISTS)]


def test_a_repeated_request_is_noted_once() -> None:
    scene = running("one")
    assert [restore(scene, "k"), restore(scene, "k")] == [None, None]
    assert [save(scene, "k", files(1)), save(scene, "k", files(1))] == [None, None]
    assert story(scene) == [CacheMiss("k"), CacheSaved("k", 100)]


def test_prefixes_are_tried_in_order_and_the_newest_entry_counts() -> None:
    entries = {key: CacheEntry(files(at), "", at, 0) for at, key in enumerate(("a-2", "a-1", "b-1"))}
    assert find(entries, "a-2", ()) == "a-2"
    assert find(entries, "a-3", ("x-", "a-", "b-")) == "a-1"
    assert find(entries, "a-", ()) is None


@given(
    st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, CACHE_BYTES_MAX), st.integers(0, 9)), max_size=9),
    st.integers(0, CACHE_BYTES_MAX),
    st.integers(0, 3),
)
def test_no_more_than_needed_makes_room_and_what_was_used_longest_ago_first(
    sizes: dict[str, tuple[int, int]], more: int, spare: int
) -> None:
    entries = {key: CacheEntry(FileSet("", 1, size), "", 0, used) for key, (size, used) in sizes.items()}
    entries |= {
        f"fill {at}": CacheEntry(FileSet(""), "", 0, 10) for at in range(CACHE_ENTRIES_MAX - len(sizes) - spare)
    }
    gone = list(evicted(entries, more))
    left = {key: entry for key, entry in entries.items() if key not in gone}

    def fits(kept: dict[str, CacheEntry]) -> bool:
        return (
            sum(entry.files.size for entry in kept.values()) + more <= CACHE_BYTES_MAX and len(kept) < CACHE_ENTRIES_MAX
        )

    assert fits(left)
    assert not gone or not fits({**left, gone[-1]: entries[gone[-1]]})
    assert all(entries[key].used_ms <= entry.used_ms for key in gone for entry in left.values())


def test_an_entry_that_was_used_stays_and_the_other_makes_room() -> None:
    scene = running("one")
    half = CACHE_BYTES_MAX // 2
    for number, key in enumerate("ab"):
        save(scene, key, files(number, half))
        scene.wait("1s")
    assert restore(scene, "a") is not None
    assert save(scene, "c", files(3, half)) is None
    assert set(scene.state.caches["default"]) == {"a", "c"}
    assert save(scene, "d", files(4, CACHE_BYTES_MAX + 1)) == CacheProblem.TOO_LARGE
    assert set(scene.state.caches["default"]) == {"a", "c"}


def test_the_quota_of_the_project_holds_for_caches() -> None:
    scene = running("one")
    scene.step(SetProject(1, Project("default", quota={FILE_BYTES: 150})))
    assert save(scene, "a", files(1)) is None
    assert save(scene, "b", files(2)) == CacheProblem.PROJECT_FULL
    assert set(scene.state.caches["default"]) == {"a"}


def test_only_a_live_attempt_of_the_node_has_a_cache() -> None:
    scene = running("one")
    stale = token(scene)
    for event in (RestoreCache(1, "b", stale, "k"), SaveCache(1, "a", stale + 1, "k", files(1))):
        assert reply_to(scene, event).code == "stale_token"
    scene.ended("one.0")
    assert reply_to(scene, SaveCache(1, "a", stale, "k", files(1))).code == "stale_token"
    assert scene.state.caches == {}


def test_projects_do_not_share_a_cache() -> None:
    scene = running("one")
    scene.submit(job("other", project="red"))
    scene.running("red/other.0")
    save(scene, "k", files(1))
    assert reply_to(scene, RestoreCache(1, "a", scene.instance("red/other.0").token, "k")) is None


@pytest.mark.parametrize(("keys", "left"), [(("a",), ["b"]), ((), []), (("a", "c"), ["a", "b"])])
def test_entries_are_deleted_all_or_none(keys: tuple[str, ...], left: list[str]) -> None:
    scene = running("one")
    for number, key in enumerate("ab"):
        save(scene, key, files(number))
    reply = reply_to(scene, DeleteCaches(1, "default", keys))
    assert isinstance(reply, RoostError) == ("c" in keys)
    assert list(scene.state.caches.get("default", {})) == left
