"""The namespace `caches`: what runs of a project have left for later runs."""

import builtins

from roost.client.namespace import Namespace, path_of
from roost.model.limits import DEFAULT_PROJECT
from roost.schema.pipelines.caches import CacheDeleted, CachePage, CacheView


class Caches(Namespace):
    """Entries of the cache of a project. The same key always stands for the same files."""

    def list(self, project: str = DEFAULT_PROJECT) -> builtins.list[CacheView]:
        """All entries, by key."""
        return self._items(path_of("/v1/projects/{}/cache", project), CachePage)

    def delete(self, *keys: str, project: str = DEFAULT_PROJECT, every: bool = False) -> int:
        """Delete these entries, or with `every` all of them; returns how many. Raises ApiError for unknown keys."""
        path, body = path_of("/v1/projects/{}/cache/delete", project), {"keys": keys, "all": every}
        return self._call("POST", path, CacheDeleted, body).deleted
