"""The namespace `files`: send and fetch sets of files, and list what they have."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roost.client.namespace import Namespace, Noun
from roost.client.running import running_index
from roost.model.limits import DEFAULT_PROJECT
from roost.schema.files import CopyView, FileSetView, NamedFilesPage, NamedFilesView

if TYPE_CHECKING:  # compression and rules of ignored files are imported by the first transfer: commands start fast
    from roost.client.files.copy import RunningInstance
    from roost.client.files.local import Paths
    from roost.files.manifest import Manifest

Transferred = Callable[[int, int], object]  # called with the bytes that are done, and of how many


def _quiet(done: int, total: int) -> None:
    pass


def _summed(read: Transferred) -> Callable[[int], None]:
    """Takes lengths, and passes on how many bytes there were so far."""
    total = 0

    def count(length: int) -> None:
        nonlocal total
        total += length
        read(total, 0)

    return count


class FileCalls(Namespace):
    """Sets of files, each named by the digest of its manifest.

    Calls may be repeated: what is there is not sent or fetched again. While no server answers, they wait a minute.
    """

    def send(
        self, paths: "Paths", project: str = DEFAULT_PROJECT, *, sent: Transferred = _quiet, read: Transferred = _quiet
    ) -> FileSetView:
        """Send a directory's content, a file, several paths by their names, or {path in the set: path here}.

        Files that .gitignore and .roostignore name stay behind. Only contents that the project lacks are sent.
        `read` and `sent` are called with the bytes so far, and in total (0: not known yet).
        Raises CannotSend, ApiError, Unreachable.
        """
        from roost.client.files.local import find_local
        from roost.client.files.send import Sender

        return Sender(self._transport, project, sent).send(find_local(paths, read=_summed(read)))

    def get(
        self, digest: str | Mapping[str, str], to: str | os.PathLike[str], patterns: Sequence[str] = (),
        project: str = DEFAULT_PROJECT, *, force: bool = False, fetched: Transferred = _quiet,
    ) -> "Manifest":  # fmt: skip
        """Fetch a set of files, or those that match a pattern, into a directory, which is made if there is none.

        {name: digest} fetches several, each into a folder of that name. Files that are there with the same content
        are left alone; with another content they are refused, or replaced with `force`. Returns what was chosen.
        Raises CannotWrite, ApiError, Unreachable: then nothing has changed. Without a match, nothing is made.
        """
        from roost.client.files.fetch import Fetcher, chosen, merged
        from roost.files.manifest import Manifest

        fetcher = Fetcher(self._transport, project, fetched)
        digests = {"": digest} if isinstance(digest, str) else dict(digest)
        found = fetcher.manifests(digests.values())
        folders = {name: chosen(found[one], patterns) if patterns else found[one] for name, one in digests.items()}
        done: list[Manifest] = []
        for manifest in merged({name: one for name, one in folders.items() if one.entries or not patterns}):
            if manifest.entries or not patterns:
                fetcher.fetch(manifest, Path(to), force=force)
                done.append(manifest)
        return Manifest(tuple(entry for manifest in done for entry in manifest.entries))

    def copy_to(
        self, source: str | os.PathLike[str], project: str, name: str, to: str = "", *, index: int | None = None,
        sent: Transferred = _quiet, read: Transferred = _quiet,
    ) -> CopyView:  # fmt: skip
        """Copy a file or a directory into the work directory of a running instance; each file appears whole there.

        `to` is a path in the work directory. As with `cp`: into a folder that is there or that ends with a slash,
        or else by this name. Without an index, the only running instance is meant: ValueError if there are more.
        Raises CannotSend, ApiError, Unreachable.
        """
        from roost.client.files.copy import Copier

        instance = self._running(project, name, index)
        return Copier(self._transport, instance, sent).into(source, to, _summed(read))

    def copy_from(
        self, project: str, name: str, path: str, to: str | os.PathLike[str], *, index: int | None = None,
        fetched: Transferred = _quiet,
    ) -> CopyView:  # fmt: skip
        """Copy a file or a directory out of the work directory of a running instance, as `cp` does.

        What could not be read is in `gaps` of the answer. Files that grow meanwhile have the size that they had first.
        Raises CannotWrite, ApiError, Unreachable; ValueError as above.
        """
        from roost.client.files.copy import Copier

        return Copier(self._transport, self._running(project, name, index), fetched).out_of(path, to)

    def _running(self, project: str, name: str, index: int | None) -> "RunningInstance":
        from roost.client.files.copy import RunningInstance

        return RunningInstance(project, name, running_index(self, project, name) if index is None else index)

    def manifest(self, digest: str, project: str = DEFAULT_PROJECT) -> "Manifest":
        """What is in a set of files."""
        from roost.client.files.fetch import Fetcher

        return Fetcher(self._transport, project).manifest(digest)

    def send_inputs(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send what the inputs of a document name on this machine (`from: ./data`), and put digests in their place."""
        from roost.client.files.inputs import with_digests

        sent: Mapping[str, Any] = with_digests(document, lambda paths, project: self.send(paths, project).digest)
        return sent


class NamedFileCalls(Noun[NamedFilesView]):
    """Names of sets of files in a project: `blob:NAME` in inputs. `set` takes the `digest` of a set that was sent."""

    _item = "/v1/projects/{}/named-files/{}"
    _view = NamedFilesView
    _page = NamedFilesPage
