"""Templates: apply, list, show, delete; and how a submission finds the one that its document names."""

from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from roost.core.state.state import State
from roost.model import limits
from roost.model.errors import Invalid, NotFound, TooMuch
from roost.model.records.access import EVERYWHERE, SUBMITTER, check_place
from roost.model.records.opaque import OpaqueRecord
from roost.model.records.template import (
    TEMPLATE,
    TEMPLATE_VERSION,
    Template,
    TemplateHead,
    TemplateUse,
    TemplateVersion,
)
from roost.model.spec.names import check_name
from roost.model.spec.reading import did_you_mean
from roost.model.spec.templates.definition import check_template
from roost.model.spec.templates.use import Found
from roost.schema.work import TemplateApplied, TemplateDetail, TemplatePage, TemplateView
from roost.server.auth.principal import Principal
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of
from roost.server.operations.permit import permit_in
from roost.server.pki.secrets import KIND as SECRET
from roost.server.views.view_of import view_of

RENDERED_BYTES_MAX = 8 << 20  # of all documents of a request: as much as could be sent

Version = Annotated[int, Meta(ge=0, description="0: the newest.")]


async def list_templates(call: Call, project: str = "", limit: Limit = PAGE_MAX, after: After = "") -> TemplatePage:
    """List the templates of your projects and the shared ones (project `*`), each with its newest version.

    `project`: only those that a workload of this project can use.
    """
    state, redactor = await call.state(), call.redactor
    heads = state.opaque_records.get(TEMPLATE, {})
    owners = {key: key.partition("/")[0] for key in heads}
    seen = (key for key, owner in owners.items() if owner == EVERYWHERE or redactor.sees(owner))
    wanted = (key for key in seen if not project or owners[key] in (EVERYWHERE, project))
    keys, following = page_of(wanted, limit, after)
    return TemplatePage(state.revision, [_head_view(key, _HEAD.decode(heads[key])) for key in keys], following)


async def get_template(call: Call, project: str, name: str, version: Version = 0) -> TemplateDetail:
    """Show the template that a workload of this project would use: its own, or the shared one of that name."""
    state = await call.state()
    if project != EVERYWHERE and not call.redactor.sees(project):
        raise _unknown(project, name)
    key = _key_of(state, project, name, shared=False)
    if key is None:
        raise _unknown(project, name, _guess(state, project, name))
    head = _head(state, key)
    number = version or head.versions[-1]
    if number not in head.versions:
        raise NotFound(_no_version(name, number, head), code="no_such_version", path="version")
    stored = _version(state, key, number)
    return view_of(
        TemplateDetail, _head_view(key, head), version=number, description=stored.template.description,
        changed_ms=stored.made_ms, changed_by=stored.made_by,
        parameters=stored.template.parameters, workload=stored.template.workload,
    )  # fmt: skip


async def apply_template(call: Call, project: str, name: str, fields: Template) -> TemplateApplied:
    """Apply a template: the first version, or another one if it differs from the newest. Old versions stay usable.

    The newest ten are kept. Workloads keep what they were made of. Project `*`: a shared template.
    """
    check_place(project, "project")
    check_name(name, "name")
    await call.context.reading.ask(partial(_check, fields), call.principal.name)
    key = f"{project}/{name}"
    state = await call.state()
    known = state.opaque_records.get(TEMPLATE, {}).get(key)
    head = _HEAD.decode(known) if known is not None else None
    if head is not None and _is_same(_version(state, key, head.versions[-1]).template, fields):
        return view_of(TemplateApplied, _head_view(key, head), result="unchanged", dropped=None)
    number = head.versions[-1] + 1 if head is not None else 1
    versions = (*(head.versions if head is not None else ()), number)
    kept = versions[-limits.TEMPLATE_VERSIONS_MAX :]
    gone = versions[: -limits.TEMPLATE_VERSIONS_MAX]
    made = TemplateHead(kept, fields.description, call.now_ms, call.principal.name)
    stored = TemplateVersion(fields, call.now_ms, call.principal.name)
    await call.put(
        OpaqueRecord(TEMPLATE, key, _ENCODER.encode(made), known),
        *(OpaqueRecord(TEMPLATE_VERSION, f"{key}@{old}", None) for old in gone),
        OpaqueRecord(TEMPLATE_VERSION, f"{key}@{number}", _ENCODER.encode(stored)),
        detail=f"version {number}" + (f"; version {gone[0]} is not kept" if gone else ""),
    )
    result = "created" if head is None else "changed"
    return view_of(TemplateApplied, _head_view(key, made), result=result, dropped=gone[0] if gone else None)


def _check(fields: Template, _: State) -> None:
    check_template(fields)


async def delete_template(call: Call, project: str, name: str) -> None:
    """Delete a template with all its versions. Workloads that were made from it stay as they are."""
    key, state = f"{project}/{name}", await call.state()
    known = state.opaque_records.get(TEMPLATE, {}).get(key)
    if known is None:
        is_shared = _key_of(state, project, name, shared=True) is not None
        raise _unknown(project, name, f"; there is a shared one, {EVERYWHERE}/{name}" if is_shared else "")
    versions = [OpaqueRecord(TEMPLATE_VERSION, f"{key}@{number}", None) for number in _HEAD.decode(known).versions]
    await call.put(OpaqueRecord(TEMPLATE, key, None, known), *versions)


class TemplateFinder:
    """The templates that the documents of one request name. It counts what is made from them."""

    def __init__(self, state: State, principal: Principal) -> None:
        self._state = state
        self._principal = principal
        self._found: dict[tuple[str, int], Found] = {}
        self._left = RENDERED_BYTES_MAX

    def find(self, project: str, use: TemplateUse, path: str) -> Found:
        """Raises Forbidden, or Invalid with the path of what is wrong."""
        permit_in(self._principal, (project,), SUBMITTER)
        key = _key_of(self._state, project, use.name, use.shared)
        if key is None:
            raise self._no_template(project, use, path)
        head = _head(self._state, key)
        number = use.version if use.version is not None else head.versions[-1]
        if number not in head.versions:
            raise Invalid(f"{path}.version", _no_version(use.name, number, head), code="no_such_version")
        found = self._found.get((key, number))
        if found is None:
            found = Found(_version(self._state, key, number).template, number, key.startswith(f"{EVERYWHERE}/"))
            self._found[key, number] = found
        self._check_secrets(found.template, project, use, path)
        return found

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooMuch(f"the documents of a request may have {RENDERED_BYTES_MAX:,} bytes when they are rendered")

    def peek(self, raw: dict[str, Any]) -> tuple[Template | None, int]:
        """The template of a document that is not checked yet, and the size of its record."""
        block, project = raw.get("template"), raw.get("project", limits.DEFAULT_PROJECT)
        name = block.get("name") if isinstance(block, dict) else None
        shared = isinstance(block, dict) and block.get("shared") is True
        key = _key_of(self._state, str(project), str(name), shared)
        if key is None:
            return None, 0
        versions, wanted = _head(self._state, key).versions, block.get("version") if isinstance(block, dict) else None
        number = wanted if wanted in versions else versions[-1]
        record = self._state.opaque_records[TEMPLATE_VERSION][f"{key}@{number}"]
        return _VERSION.decode(record).template, len(record)

    def _check_secrets(self, template: Template, project: str, use: TemplateUse, path: str) -> None:
        known = self._state.opaque_records.get(SECRET, {})
        for name, parameter in template.parameters.items():
            value = use.parameters.get(name)
            if parameter.secret and isinstance(value, str) and value and f"{project}/{value}" not in known:
                message = f"project {project} has no secret of this name; `roost secrets set {project}/NAME` sets one"
                raise Invalid(f"{path}.parameters.{name}", message, code="no_such_secret")

    def _no_template(self, project: str, use: TemplateUse, path: str) -> Invalid:
        whose = "there is no shared template" if use.shared else f"project {project} has no template"
        guess = _guess(self._state, project, use.name)
        return Invalid(f"{path}.name", f"{whose} {use.name!r:.60}{guess}", code="no_such_template")


def _key_of(state: State, project: str, name: str, shared: bool) -> str | None:
    """The key of the project's template or the shared one of that name."""
    heads = state.opaque_records.get(TEMPLATE, {})
    keys = (f"{EVERYWHERE}/{name}",) if shared else (f"{project}/{name}", f"{EVERYWHERE}/{name}")
    return next((key for key in keys if key in heads), None)


def _head(state: State, key: str) -> TemplateHead:
    return _HEAD.decode(state.opaque_records[TEMPLATE][key])


def _version(state: State, key: str, number: int) -> TemplateVersion:
    return _VERSION.decode(state.opaque_records[TEMPLATE_VERSION][f"{key}@{number}"])


def _is_same(known: Template, given: Template) -> bool:
    """Types count, the order of fields does not."""
    return _COMPARED.encode(known) == _COMPARED.encode(given)


def _head_view(key: str, head: TemplateHead) -> TemplateView:
    project, _, name = key.partition("/")
    return view_of(TemplateView, head, project=project, name=name, version=head.versions[-1])


def _no_version(name: str, number: int, head: TemplateHead) -> str:
    noun = "version" if len(head.versions) == 1 else "versions"
    return f"template {name:.100} has {noun} {', '.join(map(str, head.versions))}, not {number:,}"


def _guess(state: State, project: str, name: str) -> str:
    """The end of a sentence about a name that no template has which this project can use."""
    owners = [key.partition("/") for key in state.opaque_records.get(TEMPLATE, {})]
    names = sorted({known for owner, _, known in owners if owner in (project, EVERYWHERE)})
    return did_you_mean(name, names) or "; `roost templates` lists those there are"


def _unknown(project: str, name: str, guess: str = "") -> NotFound:
    where = "that is shared" if project == EVERYWHERE else f"for project {project:.100}"
    params = {"template": f"{project:.100}/{name:.100}"}
    return NotFound(f"there is no template {name:.100} {where}{guess}", params=params)


_HEAD = msgspec.msgpack.Decoder(TemplateHead)
_VERSION = msgspec.msgpack.Decoder(TemplateVersion)
_ENCODER = msgspec.msgpack.Encoder()
_COMPARED = msgspec.msgpack.Encoder(order="deterministic")
