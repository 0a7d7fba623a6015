"""Versions of a workload as they look from outside: how a change goes, what each version was, and what differs."""

import difflib
from collections.abc import Iterator
from typing import Any

import msgspec

from roost.core.state import State
from roost.core.versions import instances_of, version_of, versions_of
from roost.model.errors import Invalid, NotFound
from roost.model.states import HOLDING
from roost.model.workload import Rollout, Workload

LINES_MAX = 2_000  # of a document that is compared with another: a longer one would hold up the server
DIGITS_MAX = 9


class RolloutView(msgspec.Struct, frozen=True, kw_only=True):
    """A change to a new version: on its way, or how it went.

    States: rolling, waiting (the canaries are available: promote it or roll it back), done, failed. `done` instances of
    the new version are available, `failures` of them ended by themselves. `before` is the version to go back to.
    """

    state: str
    done: int
    failures: int
    before: int | None
    promoted: bool
    cause: str
    started_ms: int
    progress_ms: int


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as it is or was at a version. `instances` are there of it now. `diff`: against the version before."""

    version: int
    at_ms: int
    change: str
    present: bool
    instances: int
    rollout: RolloutView | None
    document: dict[str, Any]
    diff: list[str] = []


def rollout_view(rollout: Rollout | None) -> RolloutView | None:
    """How the change to the present version goes; None: there was none."""
    if rollout is None:
        return None
    return RolloutView(
        state=rollout.state,
        done=rollout.done,
        failures=rollout.failures,
        before=rollout.before or None,
        promoted=rollout.promoted,
        cause=rollout.cause,
        started_ms=rollout.started_ms,
        progress_ms=rollout.progress_ms,
    )


def version_views(state: State, workload: Workload, *, compared: bool) -> Iterator[VersionView]:
    """The versions of a workload that are known, the newest first; `compared`: each with what it changed."""
    known = [each for each in versions_of(state, workload) if each != workload.version]
    running: dict[int, int] = {}
    for instance in instances_of(state, workload):
        if instance.state in HOLDING:
            running[instance.version] = running.get(instance.version, 0) + 1
    for number, before in zip([workload.version, *known], [*known, 0], strict=True):
        version = found(state, workload, number)
        yield VersionView(
            version=number,
            at_ms=version.changed_ms or version.submitted_ms,
            change=version.change or "submitted",
            present=version is workload,
            instances=running.get(number, 0),
            rollout=rollout_view(version.rollout),
            document=msgspec.msgpack.decode(version.document),
            diff=difference(found(state, workload, before), version) if before and compared else [],
        )


def asked_for(diff: str) -> tuple[int, int]:
    """The two versions of A..B."""
    first, dots, second = diff.partition("..")
    if not dots or not all(each.isascii() and each.isdigit() and len(each) <= DIGITS_MAX for each in (first, second)):
        raise Invalid("diff", "two versions, such as 1..3, or `each`")
    return int(first), int(second)


def found(state: State, workload: Workload, number: int) -> Workload:
    """A workload at a version that is known."""
    version = version_of(state, workload, number)
    if version is None:
        numbers = sorted({*versions_of(state, workload), workload.version})
        known = ", ".join(map(str, numbers))
        words = f"version {number} of {workload.key} is not known; those known are {known}"
        raise NotFound(words, code="no_such_version")
    return version


def difference(old: Workload, new: Workload) -> list[str]:
    """What differs between two versions, as a unified diff of their documents; nothing: they are the same."""
    if old.document == new.document:
        return []
    before, after = _lines(old), _lines(new)
    if max(len(before), len(after)) > LINES_MAX:
        return [f"# more than {LINES_MAX:,} lines; compare the documents themselves"]
    names = (f"version {old.version}", f"version {new.version}")
    return [line.rstrip("\n") for line in difflib.unified_diff(before, after, *names, lineterm="")]


def _lines(version: Workload) -> list[str]:
    """A document as text: the same order always, whatever the order it was written in."""
    import ryaml  # only where versions are compared

    text: str = ryaml.dumps(_sorted(msgspec.msgpack.decode(version.document)))
    return text.splitlines()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value
