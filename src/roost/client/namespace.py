"""What the namespaces of the client have in common: calls with typed answers, pages, and nouns with set and delete."""

import builtins
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from roost.client.stream import StreamFollower
from roost.client.transport import Query, Transport
from roost.schema.page import HistoryBehind

PAGE = 1_000  # as much as a server gives at once
DETAILS = 100  # the same for what is large

T = TypeVar("T")
View = TypeVar("View")


class Namespace:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.behind: HistoryBehind | None = None  # what the last answer about the past says

    def _call(self, method: str, path: str, kind: type[T], body: Any = None, query: Query | None = None) -> T:
        data = None if body is None else msgspec.json.encode(body)
        return msgspec.json.decode(self._transport.call(method, path, query, data).body, type=kind)

    def _get(self, path: str, kind: type[T], query: Query | None = None) -> T:
        return self._call("GET", path, kind, None, query)

    def _followed(self, path: str, query: Query, kinds: Mapping[str, type[T]]) -> Iterator[T]:
        """The events of a stream with these names, resumed when the connection breaks."""
        with StreamFollower(lambda last_id: self._transport.stream(path, query, last_id)) as follower:
            for event in iter(follower.next, None):
                if event.name in kinds:
                    yield msgspec.json.decode(event.data, type=kinds[event.name])

    def _items(
        self, path: str, page: type[Any], query: Query | None = None, limit: int | None = None, most: int = 0
    ) -> builtins.list[Any]:
        found: builtins.list[Any] = []
        after: str | int | None = None
        most = most or PAGE
        while True:
            answer = self._get(path, page, {**(query or {}), "limit": min(limit or most, most), "after": after})
            found += answer.items
            self.behind = getattr(answer, "behind", None)
            after = answer.next
            if after is None or (limit is not None and len(found) >= limit):
                return found[:limit]


class Noun(Namespace, Generic[View]):
    """Records that operators set. A key is a name, or PROJECT and NAME."""

    _item: str  # the path of one of them, with {} for the parts of its key
    _view: type[View]
    _page: type[Any]
    _listed = ""  # the path of all of them, if it is not that of one without its name

    def list(self, *project: str) -> builtins.list[View]:
        """All of them by name; where they belong to a project: those of one project."""
        return self._items(path_of(self._listed or self._item.rpartition("/")[0], *project), self._page)

    def get(self, *key: str) -> View:
        return self._get(path_of(self._item, *key), self._view)

    def set(self, *key: str, **fields: Any) -> View:
        """Set one. The fields are those of the request's body; a field that is left out gets its default."""
        return self._call("PUT", path_of(self._item, *key), self._view, given(**fields))

    def delete(self, *key: str) -> None:
        self._transport.call("DELETE", path_of(self._item, *key))


def given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def path_of(template: str, *key: str) -> str:
    """A path with names in the places of {}, whatever they hold."""
    if template.count("{}") != len(key):
        raise TypeError(f"{template} needs {template.count('{}')} names, not {len(key)}")
    return template.format(*(quote(name, safe="") for name in key))
