"""Outputs of a run that has ended: what matches its patterns, stored by the server, and a manifest of it."""

import os
from collections.abc import Sequence
from pathlib import Path

from roost.agent.files.client import Content, FileClient, reader_of
from roost.agent.files.job import TransferJob
from roost.files.below import FILE, Below
from roost.files.manifest import FileEntry, Manifest, encode
from roost.files.select import Selection, WantedFiles, gap, select
from roost.model.limits import OUTPUT_GAPS_MAX
from roost.model.records.files import FileSet, OutputProblem, Outputs
from roost.model.spec.files import OutputBlock
from roost.model.spec.resources import read_resource
from roost.ports.blobs import digest_of

WAVE_MAX = 500  # files that are open at a time; a process may have 1,024


class Collect:
    """The outputs of one run. `run` blocks; raises TransferRefused, and TransferStopped."""

    def __init__(self, job: TransferJob, client: FileClient, without: frozenset[str]) -> None:
        self._job = job
        self._client = client
        self._without = without  # paths that are no outputs

    def run(self, outputs: Sequence[OutputBlock], folder: Path) -> Outputs:
        wanted = [WantedFiles(block.path, block.required, _bytes_max(block)) for block in outputs]
        try:
            chosen = select(folder, wanted, without=self._without, is_stopped=lambda: self._job.is_stopped)
        except OSError:  # the run has removed its work directory
            gaps = tuple(gap(OutputProblem.MISSING, item.path, item.required) for item in wanted)
            return Outputs(gaps=gaps)
        return self.keep(chosen, folder, wanted)

    def keep(self, chosen: Selection, folder: Path | int, wanted: Sequence[WantedFiles]) -> Outputs:
        """Store what was chosen. What has changed since is a gap."""
        changed = self._store(chosen.manifest, folder)
        return self._described(_without_changed(chosen, changed, wanted))

    def _store(self, manifest: Manifest, folder: Path | int) -> set[str]:
        """Put what the server lacks; returns digests of files that have changed since they were hashed."""
        files = {file.digest: file for file in manifest.files()}
        missing = self._client.missing(list(files)) if files else []
        changed: set[str] = set()
        with Below(folder) as below:
            for start in range(0, len(missing), WAVE_MAX):
                changed |= self._put([files[digest] for digest in missing[start : start + WAVE_MAX]], below)
        return changed

    def _put(self, files: list[FileEntry], below: Below) -> set[str]:
        changed: set[str] = set()
        descriptors: list[int] = []
        contents: list[Content] = []
        try:
            for file in files:
                try:
                    descriptors.append(below.open(file.path, FILE))
                except OSError:
                    changed.add(file.digest)
                else:
                    contents.append(Content(file.digest, file.size, reader_of(descriptors[-1])))
            return changed | set(self._client.put(contents))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _described(self, chosen: Selection) -> Outputs:
        """The manifest comes last: a set that is named is whole."""
        files = list(chosen.manifest.files())
        if not chosen.manifest.entries:
            return Outputs(None, chosen.gaps, chosen.more_gaps)
        data = encode(chosen.manifest)
        digest = digest_of(data)
        if self._client.missing([digest]):
            self._client.put([Content(digest, len(data), lambda offset, limit: data[offset : offset + limit])])
        found = FileSet(digest, len(files), sum(file.size for file in files))
        return Outputs(found, chosen.gaps, chosen.more_gaps)


def _bytes_max(block: OutputBlock) -> int | None:
    return None if block.size_max is None else read_resource("memory", block.size_max, "outputs.size_max")


def _without_changed(chosen: Selection, changed: set[str], wanted: Sequence[WantedFiles]) -> Selection:
    if not changed:
        return chosen
    gone = [file for file in chosen.manifest.files() if file.digest in changed]
    required = any(item.required for item in wanted)
    gaps = (*(gap(OutputProblem.CHANGED, file.path, required) for file in gone), *chosen.gaps)
    paths = {file.path for file in gone}
    entries = tuple(entry for entry in chosen.manifest.entries if entry.path not in paths)
    more_gaps = chosen.more_gaps + len(gaps[OUTPUT_GAPS_MAX:])
    return Selection(Manifest(entries), gaps[:OUTPUT_GAPS_MAX], more_gaps)
