"""Circles: whether who waits for whom comes back to its beginning."""

from collections.abc import Callable, Iterable


def circle(starts: Iterable[str], waits_for: Callable[[str], list[str]]) -> list[str]:
    """The first chain from one of the starts that comes back to one of its own; else nothing."""
    open_ends: set[str] = set()  # from here no chain comes back; only ever asked for members
    for start in starts:
        path: list[str] = []
        position: dict[str, int] = {}
        todo: list[tuple[str, bool]] = [(start, False)]
        while todo:  # depth first and without recursion: a chain may be long
            key, is_done = todo.pop()
            if is_done:
                open_ends.add(path.pop())
                del position[key]
            elif key in position:
                return [*path[position[key] :], key]
            elif key not in open_ends:
                position[key] = len(path)
                path.append(key)
                todo.append((key, True))
                todo += [(each, False) for each in reversed(waits_for(key))]
    return []
