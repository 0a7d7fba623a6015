"""Inputs of submitted workloads: names and digests become sets of files that are whole, held until the commit."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from roost.model.errors import Conflict, Invalid, NotFound, RoostError
from roost.model.events import WorkloadSpec
from roost.model.records.files import FileSet
from roost.model.spec.files import BLOB
from roost.model.states import WorkloadKind
from roost.server.files.sets import complete_set
from roost.server.operations.context import Call
from roost.server.operations.work.named_files import KIND, named_in

SETS_MAX = 1_000  # different ones in a request: each manifest is read


@asynccontextmanager
async def with_files(
    call: Call, wanted: tuple[WorkloadSpec, ...], *, many: bool = False
) -> AsyncIterator[tuple[WorkloadSpec, ...]]:
    """Workloads whose inputs have their files, which stay until the block ends: commit in it.

    The caller may submit to these projects. Raises Invalid with the path of the input.
    """
    async with AsyncExitStack() as holding:
        known: dict[tuple[str, str], FileSet] = {}
        yield tuple(
            [
                await _with_files(call, spec, f"[{number}]." if many else "", known, holding)
                for number, spec in enumerate(wanted)
            ]
        )


async def _with_files(
    call: Call, spec: WorkloadSpec, prefix: str, known: dict[tuple[str, str], FileSet], holding: AsyncExitStack
) -> WorkloadSpec:
    if not any(item.files is not None for item in spec.policy.inputs):
        return spec
    inputs = list(spec.policy.inputs)
    for position, item in enumerate(inputs):
        if item.files is None:
            continue
        field = f"vm.{item.to}" if spec.policy.kind == WorkloadKind.VM else f"inputs[{position}].from"
        source, path = item.files.digest, f"{prefix}{field}"
        if (spec.project, source) not in known:
            if len(known) >= SETS_MAX:
                raise Invalid(path, f"a request may have {SETS_MAX:,} different sets of files; send several requests")
            known[spec.project, source] = await _find(call, spec.project, source, path, holding)
        inputs[position] = msgspec.structs.replace(item, files=known[spec.project, source])
    return msgspec.structs.replace(spec, policy=msgspec.structs.replace(spec.policy, inputs=tuple(inputs)))


async def _find(call: Call, project: str, source: str, path: str, holding: AsyncExitStack) -> FileSet:
    digest = source
    if source.startswith(BLOB):
        named = named_in(await call.records(KIND), project, source.removeprefix(BLOB))
        if named is None:
            message = f"project {project} has no files with the name {source.removeprefix(BLOB)}"
            raise Invalid(path, message, code="no_such_files")
        digest = named.files.digest
    context = call.context
    finding = complete_set(context.files.project(project), digest, context.reading, call.principal.name)
    try:
        return await holding.enter_async_context(finding)
    except NotFound:
        message = f"project {project} has no set of files {digest}; send the files first"
        raise Invalid(path, message, code="no_such_files", params={"digest": digest}) from None
    except Conflict as error:
        error.path = path
        raise
    except RoostError as error:
        if error.status == Invalid.status:
            raise Invalid(path, f"is no set of files: {error}", code=error.code) from None
        raise
