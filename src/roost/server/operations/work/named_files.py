"""Named files: a name in a project for a set of files. `blob:NAME` in inputs is the set at the time of submission."""

from collections.abc import Iterator

import msgspec

from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.records.files import FileSet
from roost.model.records.opaque import OpaqueRecord
from roost.model.spec.names import check_name
from roost.schema.files import NamedFilesBody, NamedFilesPage, NamedFilesView
from roost.server.files.sets import complete_set
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of
from roost.server.operations.work.files import checked_digest

KIND = "named-files"


class NamedFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name as it is stored, below PROJECT/NAME."""

    files: FileSet
    changed_ms: int
    changed_by: str


async def list_named_files(call: Call, project: str, limit: Limit = PAGE_MAX, after: After = "") -> NamedFilesPage:
    """List the named files of a project."""
    kept = await call.records(KIND)
    keys, following = page_of(kept, limit, after, f"{project}/")
    return NamedFilesPage(call.engine.state.revision, [_view(key, kept[key]) for key in keys], following)


async def get_named_files(call: Call, project: str, name: str) -> NamedFilesView:
    """Show which set of files a name stands for."""
    key = f"{project}/{name}"
    value = (await call.records(KIND)).get(key)
    if value is None:
        raise _unknown(project, name)
    return _view(key, value)


async def set_named_files(call: Call, project: str, name: str, fields: NamedFilesBody) -> NamedFilesView:
    """Give a set of files a name. Its files are kept as long as the name. Workloads keep the set they began with."""
    check_name(name, "name")
    files, digest = call.context.files.project(project), checked_digest(fields.digest)
    async with complete_set(files, digest, call.context.reading, call.principal.name) as found:
        record = msgspec.json.encode(NamedFiles(found, call.now_ms, call.principal.name))
        await call.put(OpaqueRecord(KIND, f"{project}/{name}", record), detail=digest)
    return _view(f"{project}/{name}", record)


async def delete_named_files(call: Call, project: str, name: str) -> None:
    """Delete a name. Its files stay as long as workloads need them."""
    key = f"{project}/{name}"
    if key not in await call.records(KIND):
        raise _unknown(project, name)
    await call.put(OpaqueRecord(KIND, key, None))


def named_in(records: dict[str, bytes], project: str, name: str) -> NamedFiles | None:
    value = records.get(f"{project}/{name}")
    return None if value is None else _decode(value)


def named_in_state(state: State, project: str) -> Iterator[str]:
    """The manifests of all sets of files that records name in a project: workloads, instances and names."""
    for files in state.file_sets.get(project, ()):
        yield files.digest
    for key, value in state.opaque_records.get(KIND, {}).items():
        if key.startswith(f"{project}/"):
            yield _decode(value).files.digest


def is_named_in(state: State, project: str, files: FileSet) -> bool:
    """Whether a record names this set."""
    if files in state.file_sets.get(project, ()):
        return True
    names = state.opaque_records.get(KIND, {}).items()
    return any(_decode(value).files == files for key, value in names if key.startswith(f"{project}/"))


def _view(key: str, value: bytes) -> NamedFilesView:
    project, _, name = key.partition("/")
    named, files = _decode(value), _decode(value).files
    return NamedFilesView(
        project=project, name=name, digest=files.digest, files=files.files, size=files.size,
        changed_ms=named.changed_ms, changed_by=named.changed_by,
    )  # fmt: skip


def _decode(value: bytes) -> NamedFiles:
    return msgspec.json.decode(value, type=NamedFiles)


def _unknown(project: str, name: str) -> NotFound:
    return NotFound(f"project {project} has no files with the name {name:.100}", params={"name": name[:100]})
