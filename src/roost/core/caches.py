"""Caches of projects: files that runs leave for later runs. Entries never change; those used longest ago make room."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from roost.core.state.files import project_full, set_cache
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.core.transitions import note_instance
from roost.model.errors import Conflict, NotFound
from roost.model.events import DeleteCaches, RestoreCache, SaveCache
from roost.model.keys import split_workload_key
from roost.model.limits import CACHE_BYTES_MAX, CACHE_ENTRIES_MAX
from roost.model.reasons.caching import CacheHit, CacheMiss, CacheSaved, CacheUnused
from roost.model.reasons.reason import Reason
from roost.model.records.cache import CacheEntry, CacheFound, CacheProblem
from roost.model.records.instance import Instance


def restore(state: State, out: Step, event: RestoreCache, now: int) -> None:
    """Answer an attempt with the entry that it gets, if there is one."""
    instance = _attempt(state, event.node, event.token)
    project, _ = split_workload_key(instance.workload)
    key = find(state.caches.get(project, {}), event.key, event.prefixes)
    if key is None:
        _note(state, instance, CacheMiss(event.key), now)
        return out.reply(event.request, None)
    entry = replace(state.caches[project][key], used_ms=now)
    _put(state, project, key, entry)
    _note(state, instance, CacheHit(key, entry.files.size), now)
    out.reply(event.request, CacheFound(key, entry.files))


def find(entries: Mapping[str, CacheEntry], key: str, prefixes: tuple[str, ...]) -> str | None:
    """The entry of that key, else the newest one of the first prefix that any has."""
    if key in entries:
        return key
    for prefix in prefixes:
        found = [(entry.saved_ms, name) for name, entry in entries.items() if name.startswith(prefix)]
        if found:
            return max(found)[1]
    return None


def save(state: State, out: Step, event: SaveCache, now: int) -> None:
    """Keep the files of an attempt, or say why not. The answer is the problem, if there is one."""
    instance = _attempt(state, event.node, event.token)
    problem = event.problem
    if problem is None and _is_saved(state, instance, event):
        return out.reply(event.request, None)
    if problem is None:
        problem = _save(state, instance, event, now)
    saved = CacheSaved(event.key, event.files.size if event.files is not None else 0)
    _note(state, instance, saved if problem is None else CacheUnused(event.key, problem, event.detail), now)
    out.reply(event.request, problem)


def _is_saved(state: State, instance: Instance, event: SaveCache) -> bool:
    """Whether it is saved already: the answer was lost."""
    project, _ = split_workload_key(instance.workload)
    entry = state.caches.get(project, {}).get(event.key)
    return entry is not None and (entry.files, entry.saved_by) == (event.files, instance.key)


def _save(state: State, instance: Instance, event: SaveCache, now: int) -> CacheProblem | None:
    project, _ = split_workload_key(instance.workload)
    entries = state.caches.get(project, {})
    if event.files is None:
        return CacheProblem.EMPTY
    if event.key in entries:
        return CacheProblem.EXISTS
    if event.files.size > CACHE_BYTES_MAX:
        return CacheProblem.TOO_LARGE
    if project_full(state, project, [event.files]) is not None:
        return CacheProblem.PROJECT_FULL
    for key in evicted(entries, event.files.size):
        _put(state, project, key, None)
    _put(state, project, event.key, CacheEntry(event.files, instance.key, now, now))
    return None


def evicted(entries: Mapping[str, CacheEntry], more: int) -> Iterator[str]:
    """The entries that make room for one of so many bytes, those used longest ago first."""
    size, count = sum(entry.files.size for entry in entries.values()), len(entries)
    for key, entry in sorted(entries.items(), key=lambda item: (item[1].used_ms, item[0])):
        if size + more <= CACHE_BYTES_MAX and count < CACHE_ENTRIES_MAX:
            return
        size, count = size - entry.files.size, count - 1
        yield key


def delete(state: State, out: Step, event: DeleteCaches) -> None:
    """Forget these entries, or all of a project: either all keys are there, or nothing is forgotten."""
    entries = state.caches.get(event.project, {})
    for key in event.keys:
        if key not in entries:
            raise NotFound(f"the cache of project {event.project} has no key {key:.100}", path="key")
    keys = event.keys or tuple(entries)
    for key in dict.fromkeys(keys):
        _put(state, event.project, key, None)
    out.reply(event.request, len(keys))


def _attempt(state: State, node: str, token: int) -> Instance:
    instance = state.allocated.get(node, {}).get(token)
    if instance is None:
        raise Conflict(f"node {node} has no attempt {token}", code="stale_token")
    return instance


def _put(state: State, project: str, key: str, entry: CacheEntry | None) -> None:
    set_cache(state, project, key, entry)
    state.dirty["cache", f"{project}/{key}"] = entry


def _note(state: State, instance: Instance, reason: Reason, now: int) -> None:
    if instance.story and instance.story[-1].reason == reason:
        return  # it is asked again: the answer was lost
    note_instance(state, instance, instance.state, reason, now)
    state.touch_instance(instance)
