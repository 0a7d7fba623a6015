"""The cache of a run: restored beside its inputs, saved after its success. Whatever goes wrong is only reported."""

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

import msgspec

from roost.agent.files.client import FileClient, TransferRefused
from roost.agent.files.collect import Collect
from roost.agent.files.job import TransferJob
from roost.files.manifest import FileEntry, Manifest
from roost.files.merge import InputPart, merge
from roost.files.patterns import Pattern
from roost.files.select import WantedFiles, select
from roost.model.errors import RoostError
from roost.model.records.cache import CacheProblem
from roost.model.records.files import OutputGap, OutputProblem
from roost.model.spec.files import CacheBlock, cache_key

NOTE_NAME = ".roost-cache.json"  # in the work directory: an agent that takes the run over saves under the same key
NOTE_BYTES_MAX = 4_096


class CacheNote(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    save: bool  # the key was not there


class CacheRestore:
    """What a run gets from the cache, for one fetch of its inputs."""

    def __init__(self, block: CacheBlock, env: Mapping[str, str], client: FileClient) -> None:
        self._block = block
        self._env = env
        self._client = client
        self._note: CacheNote | None = None
        self.digest = ""  # of the manifest that it gets; empty: there is none

    def find(self, inputs: Manifest) -> None:
        """Look for an entry. The files of keys are those of the inputs."""
        key = self._block.key
        try:
            key, *prefixes = [self._key(text, inputs) for text in (key, *self._block.restore)]
            found, self.digest = self._client.restore_cache(key, prefixes)
            self._note = CacheNote(key, save=found != key)
        except (RoostError, TransferRefused) as error:
            problem = CacheProblem.BAD_KEY if isinstance(error, RoostError) else CacheProblem.NOT_RESTORED
            self._report(key, problem, error)

    def merged(self, cached: Manifest, inputs: Manifest) -> Manifest:
        """Inputs count more than what is cached."""
        return merge([InputPart("", cached), InputPart("", inputs)], replace=True)

    def give_up(self, error: Exception) -> None:
        self.digest = ""
        self._report(self._note.key if self._note is not None else "", CacheProblem.NOT_RESTORED, error)

    def leave_note(self, folder: Path) -> None:
        if self._note is not None:
            (folder / NOTE_NAME).write_bytes(msgspec.json.encode(self._note))

    def _key(self, text: str, inputs: Manifest) -> str:
        return cache_key(text, lambda pattern: hash_of(inputs, pattern), self._env, platform.machine())

    def _report(self, key: str, problem: CacheProblem, error: Exception) -> None:
        try:
            self._client.save_cache(key, problem=problem, detail=str(error))
        except TransferRefused:
            pass  # the server has no such attempt, and no story to write it in


def hash_of(manifest: Manifest, pattern: str) -> str:
    """Of the paths and contents of files that match; empty if none does."""
    matches, hasher, found = Pattern(pattern).matches, hashlib.sha256(), False
    for entry in manifest.entries:
        if isinstance(entry, FileEntry) and matches(entry.path):
            hasher.update(f"{entry.path}\0{entry.digest}\0".encode())
            found = True
    return hasher.hexdigest() if found else ""


def save_cache(job: TransferJob, client: FileClient, block: CacheBlock, folder: Path) -> None:
    """Store what a run leaves in the paths of its cache, whole or not at all. Raises TransferStopped."""
    note = _note_in(folder)
    if note is None or not note.save:
        if note is None:
            client.save_cache(block.key, problem=CacheProblem.BAD_KEY)
        return
    digest, problem, detail = "", CacheProblem.NOT_STORED, ""
    try:
        digest, problem, detail = _stored(job, client, block, folder)
    except (TransferRefused, OSError) as error:
        detail = str(error)
    client.save_cache(note.key, digest, None if digest else problem, detail)


def _stored(job: TransferJob, client: FileClient, block: CacheBlock, folder: Path) -> tuple[str, CacheProblem, str]:
    wanted = [WantedFiles(path) for path in block.paths]
    chosen = select(folder, wanted, without={NOTE_NAME}, is_stopped=lambda: job.is_stopped)
    if chosen.manifest.entries and not _lacking(chosen.gaps):
        kept = Collect(job, client, frozenset()).keep(chosen, folder, wanted)
        if kept.files is not None and not _lacking(kept.gaps):
            return kept.files.digest, CacheProblem.NOT_STORED, ""
        return "", CacheProblem.INCOMPLETE, _lacking(kept.gaps)
    lacking = _lacking(chosen.gaps)
    return "", CacheProblem.INCOMPLETE if lacking else CacheProblem.EMPTY, lacking


def _lacking(gaps: tuple[OutputGap, ...]) -> str:
    """A path that cannot be kept; paths without any file are not missed."""
    return next((gap.path for gap in gaps if gap.problem != OutputProblem.MISSING), "")


def _note_in(folder: Path) -> CacheNote | None:
    """A run can write it as well: it is checked as what a run says, and concerns only its own project."""
    try:
        with (folder / NOTE_NAME).open("rb") as file:
            return msgspec.json.decode(file.read(NOTE_BYTES_MAX), type=CacheNote)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
