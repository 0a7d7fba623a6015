"""The `template` of a document: found, rendered and replaced by the workload that it stands for.

Fields beside `template` replace those of the template; `env`, `labels` and `resources` are merged by name.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.events import WorkloadSpec
from roost.model.records.template import Template, TemplateUse
from roost.model.spec.problems import all_of
from roost.model.spec.reading import read
from roost.model.spec.submission import spec_of_document
from roost.model.spec.templates.definition import parameters_at
from roost.model.spec.templates.parameters import check_values
from roost.model.spec.templates.render import Rendered, render

FIELD = "template"
LABEL = "template"  # of every workload that was made from one
MERGED = ("env", "labels", "resources")


class Found(NamedTuple):
    """A version of a template. `shared`: it belongs to no project."""

    template: Template
    version: int
    shared: bool


#: Finds a template by the project of the workload, its use, and the path of that.
Find = Callable[[str, TemplateUse, str], Found]


def is_templated(raw: object) -> bool:
    return isinstance(raw, dict) and raw.get(FIELD) is not None


def spec_of_use(raw: dict[str, Any], path: str, find: Find) -> tuple[WorkloadSpec, int]:
    """What the core is asked for, and the size of the rendered document. Errors name a parameter, or the template."""
    here = f"{path}.{FIELD}" if path else FIELD
    use = read(raw[FIELD], TemplateUse, here)
    project = raw.get("project", limits.DEFAULT_PROJECT)
    if not isinstance(project, str):
        raise Invalid(f"{path}.project" if path else "project", "this is a text")
    found = find(project, use, here)
    values = check_values(found.template.parameters, use.parameters, f"{here}.parameters")
    rendered = render(found.template, values, here)
    given = {name: value for name, value in raw.items() if name != FIELD}
    known = TemplateUse(use.name, found.version, found.shared, dict(sorted(use.parameters.items())))
    document = {**_merged(rendered.document, given), FIELD: msgspec.to_builtins(known)}
    _add_label(document, use.name, path)
    try:
        return spec_of_document(document, path, is_rendered=True), rendered.size
    except Invalid as error:
        raise all_of([_explained(wrong, path, here, given, rendered, known) for wrong in error.every]) from None


def _merged(document: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    merged = {**document, **given}
    for field in MERGED:
        ours, theirs = document.get(field), given.get(field)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            merged[field] = {**ours, **theirs}
    return merged


def _add_label(document: dict[str, Any], name: str, path: str) -> None:
    labels = document.setdefault("labels", {})
    if not isinstance(labels, dict):
        return  # refused below
    if labels.get(LABEL, name) != name:
        where = f"{path}.labels.{LABEL}" if path else f"labels.{LABEL}"
        raise Invalid(where, "every workload of a template gets this label; take another name for yours")
    document["labels"] = {**labels, LABEL: name}


def _explained(
    wrong: Invalid, path: str, here: str, given: dict[str, Any], rendered: Rendered, use: TemplateUse
) -> Invalid:
    """An error of a rendered document, with the path of what its author has written."""
    inner = wrong.path.removeprefix(path).lstrip(".")
    field, _, rest = inner.partition(".")
    field = field.partition("[")[0]
    is_own = field not in rendered.document or (field in given and field not in MERGED)
    if is_own or (field in given and isinstance(given[field], dict) and rest.split(".")[0] in given[field]):
        return wrong
    names = parameters_at(inner, rendered.uses)
    where = f"{here}.parameters.{names[0]}" if names else here
    message = f"{wrong.message} (`{inner}` of template {use.label})"
    return Invalid(where, message, code=wrong.code, params=wrong.params)
