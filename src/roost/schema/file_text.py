"""The sentences about files of runs: inputs, outputs, images and caches."""

from collections.abc import Callable
from typing import Any

from roost.model.reasons import attempts, caching
from roost.model.records.cache import CacheProblem
from roost.model.records.files import IMAGE_PROBLEMS, InputProblem, OutputGap, OutputProblem
from roost.model.spec.units import show_size

PROBLEMS = {
    CacheProblem.NOT_RESTORED: "not restored",
    CacheProblem.EXISTS: "not saved: another run saved it meanwhile",
    CacheProblem.BAD_KEY: "not saved: the key is too long, or was lost",
    CacheProblem.EMPTY: "not saved: no file matches its paths",
    CacheProblem.INCOMPLETE: "not saved: not all files could be kept",
    CacheProblem.TOO_LARGE: "not saved: too large",
    CacheProblem.PROJECT_FULL: "not saved: the quota of the project is used up",
    CacheProblem.NOT_STORED: "not saved: the blob store did not take it",
}


def _hit(why: caching.CacheHit, _: object) -> str:
    return f"cache hit {why.key} ({show_size(why.size)})"


def _saved(why: caching.CacheSaved, _: object) -> str:
    return f"cache saved {why.key} ({show_size(why.size)})"


def _unused(why: caching.CacheUnused, _: object) -> str:
    detail = f": {why.detail}" if why.detail else ""
    return f"cache {PROBLEMS[why.problem]}{detail} ({why.key})"


FAILURE_TEXTS = {
    InputProblem.NOT_FOUND: "the blob store does not have it; send it again and submit",
    InputProblem.WRONG_BYTES: "its bytes are others than its digest or size says",
    InputProblem.UNSAFE_PATH: "it leads out of the work directory, or its set is damaged",
    InputProblem.SAME_PATH: "a file in one input is a folder in another",
    InputProblem.NO_MATCH: "no file matches its pattern",
    InputProblem.TOO_LARGE: "a work directory cannot have so many files or bytes",
    InputProblem.IMAGE_NOT_FOUND: "no registry has it",
    InputProblem.IMAGE_NOT_HERE: "the node does not have it, and `pull: never` fetches none",
    InputProblem.WRONG_ARCHITECTURE: "it is for other processors than the node has",
    InputProblem.REGISTRY_DENIED: "the registry refuses the credentials, or wants some",
    InputProblem.REGISTRY_UNREACHABLE: "the node does not reach the registry",
    InputProblem.ENGINE_AWAY: "the container engine of the node does not answer",
    InputProblem.ENGINE_FAILED: "the container engine of the node failed",
    InputProblem.IMAGE_GONE: "the node no longer has it",
    InputProblem.IMAGE_UNUSABLE: "no virtual machine can be made of it here",
    InputProblem.NO_QEMU: "the node no longer has QEMU",
    InputProblem.DISK_FULL: "the disk of the node is full",
    InputProblem.DISK_FAILED: "the disk of the node refused it",
    InputProblem.URL_FAILED: "its URL failed",
    InputProblem.REFUSED: "the server refused it",
    InputProblem.TIMED_OUT: "it did not come in time",
    InputProblem.AGENT_FAILED: "the agent failed; its log has more",
}


def _inputs_failed(why: attempts.InputsFailed, _: object) -> str:
    failure = why.failure
    detail = f" ({failure.detail})" if failure.detail else ""
    kind = "image" if failure.problem in IMAGE_PROBLEMS else "input"
    subject = f"{kind} {failure.path}" if failure.path else "inputs"
    return f"{subject}: {FAILURE_TEXTS[failure.problem]}{detail}"


GAP_TEXTS = {
    OutputProblem.MISSING: "no file matches",
    OutputProblem.TOO_LARGE: "too large",
    OutputProblem.TOO_MANY: "too many files",
    OutputProblem.NOT_A_FILE: "not a regular file, or a link that leaves the work directory",
    OutputProblem.UNREADABLE: "the agent cannot read it",
    OutputProblem.CHANGED: "it changed while it was read",
    OutputProblem.NOT_STORED: "it could not be stored in time",
    OutputProblem.PROJECT_FULL: "the project has no room for more files",
}


def gaps_text(gaps: tuple[OutputGap, ...], more: int) -> str:
    texts = [f"{gap.path or 'all outputs'} ({GAP_TEXTS[gap.problem]})" for gap in gaps]
    return ", ".join(texts) + (f" and {more} more" if more else "")


FILE_SENTENCES: dict[type, str | Callable[[Any, Any], str]] = {
    attempts.InputsFailed: _inputs_failed,
    caching.CacheHit: _hit,
    caching.CacheMiss: "cache miss {key}",
    caching.CacheSaved: _saved,
    caching.CacheUnused: _unused,
}
