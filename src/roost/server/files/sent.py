"""Bytes that were sent and that nothing names so far: what one principal, and one project, may have of them.

They count from their first piece until a workload or a name has their set, or until garbage collection may delete them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from roost.model.errors import NoService
from roost.model.records.files import FileSet

PRINCIPAL_BYTES_MAX = 128 << 30  # two sets of the largest size
PROJECT_BYTES_MAX = 512 << 30
CONTENTS_MAX = 2_000_000  # of all projects: 400 MB

IsNamed = Callable[[str, FileSet], bool]  # whether a record of a project names a set of files


class _Sent:
    """Of one owner in one project: sizes, and until when they count. The oldest are first."""

    __slots__ = ("contents", "sets")

    def __init__(self) -> None:
        self.contents: dict[str, tuple[int, int]] = {}
        self.sets: dict[FileSet, tuple[int, int]] = {}  # made of contents, which count there no more


class SentBytes:
    """One for all projects, as long as this server leads. `keep_ms`: how long bytes stay that nothing names."""

    def __init__(self, is_named: IsNamed, keep_ms: int) -> None:
        self._is_named = is_named
        self._keep_ms = keep_ms
        self._sent: dict[tuple[str, str], _Sent] = {}
        self._projects: Counter[str] = Counter()  # their bytes
        self._owners: Counter[str] = Counter()
        self._count = 0

    def add(self, project: str, owner: str, sizes: Iterable[tuple[str, int]], now_ms: int) -> None:
        """An owner sends these contents. Raises NoService, and then none of them counts."""
        mine = self._sent.get((project, owner)) or _Sent()
        new = {digest: size for digest, size in sizes if digest not in mine.contents}
        if not new:
            return
        more = sum(new.values())
        self._require_room(self._owners, owner, more, PRINCIPAL_BYTES_MAX, now_ms)
        self._require_room(self._projects, project, more, PROJECT_BYTES_MAX, now_ms)
        if self._count + len(new) > CONTENTS_MAX:
            raise NoService("too many files are being sent; try again when some of them are in use", code="too_busy")
        self._sent[project, owner] = mine
        mine.contents.update((digest, (size, now_ms + self._keep_ms)) for digest, size in new.items())
        self._change(project, owner, more, len(new))

    def made(self, project: str, owner: str, files: FileSet, contents: Collection[str], now_ms: int) -> None:
        """A set was made of contents: from now on they count until it is named."""
        mine = self._sent.get((project, owner))
        found = [] if mine is None else [digest for digest in (files.digest, *contents) if digest in mine.contents]
        if mine is not None and found:
            size = sum(mine.contents.pop(digest)[0] for digest in found)
            before, _ = mine.sets.pop(files, (0, 0))
            mine.sets[files] = before + size, now_ms + self._keep_ms
            self._change(project, owner, 0, -len(found))

    def is_sending(self, project: str, owner: str) -> bool:
        mine = self._sent.get((project, owner))
        return mine is not None and bool(mine.contents)

    def release(self, project: str, owner: str) -> None:
        """All that this owner has sent has a name, or is given up."""
        mine = self._sent.pop((project, owner), None)
        if mine is not None:
            size = sum(size for size, _ in (*mine.contents.values(), *mine.sets.values()))
            self._change(project, owner, -size, -len(mine.contents))

    def size(self, now_ms: int) -> int:
        """Of all projects."""
        self._forget(now_ms)
        return self._projects.total()

    def _require_room(self, held: Counter[str], name: str, more: int, bytes_max: int, now_ms: int) -> None:
        if held[name] + more > bytes_max:
            self._forget(now_ms)
        if (size := held[name]) + more > bytes_max:
            who = f"project {name}" if held is self._projects else name.removeprefix("principal:")
            message = f"{who} has {size:,} bytes of files that nothing uses yet, of at most {bytes_max:,}"
            params = {"bytes": size, "bytes_max": bytes_max, "more": more}
            raise NoService(f"{message}; {more:,} more do not fit", code="files_held", params=params)

    def _forget(self, now_ms: int) -> None:
        """What is named by now, and what garbage collection may have deleted."""
        for (project, owner), mine in list(self._sent.items()):
            gone = list(_before(mine.contents, now_ms))
            size = sum(mine.contents.pop(digest)[0] for digest in gone)
            named = [
                files for files, (_, until) in mine.sets.items() if until <= now_ms or self._is_named(project, files)
            ]
            size += sum(mine.sets.pop(files)[0] for files in named)
            self._change(project, owner, -size, -len(gone))
            if not mine.contents and not mine.sets:
                del self._sent[project, owner]

    def _change(self, project: str, owner: str, size: int, count: int) -> None:
        self._count += count
        for held, name in ((self._projects, project), (self._owners, owner)):
            held[name] += size
            if not held[name]:
                del held[name]


def _before(contents: dict[str, tuple[int, int]], now_ms: int) -> Iterator[str]:
    for digest, (_, until) in contents.items():
        if until > now_ms:
            return
        yield digest
