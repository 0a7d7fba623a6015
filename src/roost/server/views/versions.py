"""Views of the versions of a workload, and how two of them differ."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from roost.core.state import versions
from roost.core.state.state import State
from roost.model.errors import Invalid, NotFound
from roost.model.reasons.attempts import SUBMITTED
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED
from roost.schema.reason_text import Visible, reason_view, render
from roost.schema.rollouts import VersionView
from roost.server.views.work import rollout_view

LINES_MAX = 2_000  # of a document that is compared with another: a longer one would hold up the server
VERSIONS = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


def version_views(state: State, workload: Workload, *, compared: bool, visible: Visible | None = None
) -> Iterator[VersionView]:  # fmt: skip
    """The versions of a workload that are known, the newest first; `compared`: each with what it changed."""
    existing = [item for item in versions.versions_of(state, workload) if item != workload.version]
    running = Counter(
        instance.version for instance in versions.instances_of(state, workload) if instance.state in ALLOCATED
    )
    for number, before in zip([workload.version, *existing], [*existing, 0], strict=True):
        version = found(state, workload, number)
        yield VersionView(
            version=number,
            at_ms=version.changed_ms or version.submitted_ms,
            change=render(version.change or SUBMITTED, visible),
            change_reason=reason_view(version.change or SUBMITTED, visible),
            present=version is workload,
            instances=running[number],
            rollout=rollout_view(version.rollout, visible),
            document=msgspec.msgpack.decode(version.document),
            diff=difference(found(state, workload, before), version) if before and compared else [],
        )


def asked_for(diff: str) -> tuple[int, int]:
    asked = VERSIONS.fullmatch(diff)
    if asked is None:
        raise Invalid("diff", "two versions, such as 1..3, or `each`")
    return int(asked[1]), int(asked[2])


def found(state: State, workload: Workload, number: int) -> Workload:
    """A workload at a version. Raises NotFound."""
    version = versions.version_of(state, workload, number)
    if version is None:
        existing = ", ".join(map(str, sorted({*versions.versions_of(state, workload), workload.version})))
        message = f"version {number} of {workload.key} is not known; those known are {existing}"
        raise NotFound(message, code="no_such_version")
    return version


def difference(old: Workload, new: Workload) -> list[str]:
    if old.document == new.document:
        return []
    before, after = _lines(old), _lines(new)
    if max(len(before), len(after)) > LINES_MAX:
        return [f"# more than {LINES_MAX:,} lines; compare the documents themselves"]
    names = (f"version {old.version}", f"version {new.version}")
    return [line.rstrip("\n") for line in difflib.unified_diff(before, after, *names, lineterm="")]


def _lines(version: Workload) -> list[str]:
    """A document as text, with sorted keys."""
    import ryaml  # only where versions are compared

    document = msgspec.to_builtins(msgspec.msgpack.decode(version.document), order="deterministic")
    text: str = ryaml.dumps(document)
    return text.splitlines()
