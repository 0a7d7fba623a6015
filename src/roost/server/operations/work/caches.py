"""The caches of projects: what runs have left for later runs."""

from roost.model.errors import Invalid
from roost.model.events import DeleteCaches
from roost.model.limits import CACHE_ENTRIES_MAX
from roost.model.records.cache import CacheEntry
from roost.schema.pipelines.caches import CacheDeleted, CacheDeletion, CachePage, CacheView
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of


async def list_caches(call: Call, project: str, limit: Limit = PAGE_MAX, after: After = "") -> CachePage:
    """List the entries of the cache of a project."""
    state = await call.state()
    entries = state.caches.get(project, {})
    keys, following = page_of(entries, limit, after)
    return CachePage(state.revision, [_view(project, key, entries[key]) for key in keys], following)


async def delete_caches(call: Call, project: str, fields: CacheDeletion) -> CacheDeleted:
    """Delete entries of the cache of a project. Runs that have them already keep them."""
    if bool(fields.keys) == fields.all:
        raise Invalid("keys", "give keys, or all: true")
    if len(fields.keys) > CACHE_ENTRIES_MAX:
        raise Invalid("keys", f"a project has at most {CACHE_ENTRIES_MAX} keys")
    return CacheDeleted(await call.ask(lambda number: DeleteCaches(number, project, tuple(fields.keys))))


def _view(project: str, key: str, entry: CacheEntry) -> CacheView:
    return CacheView(
        project=project, key=key, digest=entry.files.digest, files=entry.files.files, size=entry.files.size,
        saved_by=entry.saved_by, saved_ms=entry.saved_ms, used_ms=entry.used_ms,
    )  # fmt: skip
