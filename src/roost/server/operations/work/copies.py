"""Copies into and out of running instances: a client names a copy, and asks for it until it is done."""

import re
from typing import Annotated

from msgspec import Meta

from roost.model.errors import Invalid, NotFound
from roost.model.spec.files import check_place
from roost.model.spec.names import check_text
from roost.schema.files import CopyBody, CopyView
from roost.server.files.copies import Copy
from roost.server.files.copying import CopyRequest
from roost.server.operations.context import Call
from roost.server.operations.work.files import checked_digest
from roost.server.views.outputs import gap_view
from roost.server.views.work import instance_detail

WAIT_S_MAX = 20  # of an answer: proxies end what is silent for a minute

COPY_ID = re.compile(r"[0-9a-f]{32}")

Wait = Annotated[int, Meta(ge=0, le=WAIT_S_MAX, description="Seconds to wait for the end of the copy.")]


async def copy_files(
    call: Call, project: str, name: str, index: int, copy: str, fields: CopyBody, wait: Wait = 0
) -> CopyView:
    """Copy files into or out of the work directory of a running instance. The first call begins it; ask until `done`.

    The client names the copy with 32 hexadecimal digits of chance, so that a call may be repeated.
    Into it, each file appears whole. 409 `not_running`: its attempt has not begun, has ended, or ends meanwhile. What
    is copied counts for the quota of the project until the copy is ended, or a minute passes without a request for it.
    """
    workload = await call.workload(project, name)
    instance_detail(call.engine.state, workload, index)  # whether there is such an instance
    instance = call.engine.state.instances.get(f"{workload.key}.{index}")
    if instance is None:
        raise NotFound(f"{workload.key}.{index} has not run yet", code="not_running")
    request = _checked(copy, project, fields)
    copying = call.context.copying
    is_new = copying.table.find(copy) is None
    done = await copying.copy(request, instance, call.principal.name, wait)
    if is_new:
        verb, size = ("into", f", {fields.digest}") if fields.digest else ("out of", "")
        detail = f"{verb} the work directory: {fields.path or '.'}{size}"
        call.context.note(call.principal, "copy_files", instance.key, detail)
    return CopyView(state="copying", node=instance.node) if done is None else _view(done)


async def end_copy(call: Call, project: str, name: str, index: int, copy: str) -> None:
    """End a copy: give up one that is under way, or let go of the files of one that is done. Idempotent."""
    workload = await call.workload(project, name)
    await call.context.copying.end(copy, project, f"{workload.key}.{index}")


def _checked(copy: str, project: str, fields: CopyBody) -> CopyRequest:
    if COPY_ID.fullmatch(copy) is None:
        raise Invalid("copy", "this has to be an id that the client makes: 32 hexadecimal digits")
    check_place(fields.path, "path")
    if fields.digest:
        checked_digest(fields.digest)
    check_text(fields.name, "name")
    if "/" in fields.name or fields.name in (".", ".."):
        raise Invalid("name", "is one name, without a slash")
    if fields.is_file and not fields.name:
        raise Invalid("name", "a file has a name")
    return CopyRequest(copy, project, fields.path, fields.digest, fields.name, fields.is_file)


def _view(copy: Copy) -> CopyView:
    report = copy.report
    assert report is not None
    files, outputs = copy.files, report.outputs
    return CopyView(
        state="done", node=copy.node, path=report.place, is_file=report.is_file or copy.order.is_file,
        digest=files.digest if files is not None else "", files=files.files if files is not None else 0,
        size=files.size if files is not None else 0,
        gaps=[gap_view(gap) for gap in outputs.gaps] if outputs is not None else [],
        more_gaps=outputs.more_gaps if outputs is not None else 0, grown=list(report.grown),
    )  # fmt: skip
