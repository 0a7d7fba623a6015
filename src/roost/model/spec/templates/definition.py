"""A template as it is applied: checked with its defaults, and with samples where it has none."""

from typing import Any

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.template import Parameter, Template, Value
from roost.model.spec.names import check_text
from roost.model.spec.problems import all_of
from roost.model.spec.submission import spec_of_document
from roost.model.spec.templates.parameters import check_parameters
from roost.model.spec.templates.render import Rendered, render

GIVEN_BY_USER = {
    "name": "a template has no name for its workloads: each has its own",
    "project": "the project is that of the workload, and is given with it",
    "template": "a template cannot be made of another one",
}
SAMPLE_NAME = "sample"
#: A sample in one of these may make another field wrong.
RELATED = ("kind", "count", "each", "gang", "ports", "schedule", "after")


def check_template(template: Template) -> bytes:
    """The template packed, if it is one. Raises everything that can be found out without values."""
    check_text(template.description, "description")
    check_parameters(template.parameters, "parameters")
    for field, message in GIVEN_BY_USER.items():
        if field in template.workload:
            raise Invalid(f"workload.{field}", message)
    rendered = render(template, _samples(template), "workload")
    _check_rendered(template, rendered)
    packed = msgspec.msgpack.encode(template)
    if len(packed) > limits.TEMPLATE_BYTES_MAX:
        raise Invalid("$", f"a template may have {limits.TEMPLATE_BYTES_MAX:,} bytes; this one has {len(packed):,}")
    return packed


def _check_rendered(template: Template, rendered: Rendered) -> None:
    """Check a workload that has samples in it. What is wrong where a sample stands may be right with a value."""
    sampled = {name for name, parameter in template.parameters.items() if _is_sampled(parameter)}
    places = {path: names for path, names in rendered.uses.items() if sampled.intersection(names)}
    is_vague = any(path.split(".")[0].split("[")[0] in RELATED for path in places)
    try:
        spec_of_document({"name": SAMPLE_NAME, **rendered.document})
    except Invalid as error:
        found: list[Invalid] = []
        for wrong in error.every:
            names = parameters_at(wrong.path, rendered.uses)
            around = parameters_at(wrong.path, rendered.uses, parts=True)
            if sampled.intersection(around) or (is_vague and not names):
                continue
            at = f"parameters.{names[0]}.default" if names else f"workload.{wrong.path}"
            about = f" (as `{wrong.path}` of the workload)" if names else ""
            found.append(Invalid(at, f"{wrong.message}{about}"))
        if found:
            raise all_of(found) from None


def parameters_at(path: str, uses: dict[str, tuple[str, ...]], *, parts: bool = False) -> tuple[str, ...]:
    """The parameters in a field of a rendered workload; `parts`: also those in a part of it."""
    for used, names in uses.items():
        is_part = parts and used.startswith((f"{path}.", f"{path}["))
        if used == path or is_part or path.startswith((f"{used}.", f"{used}[")):
            return names
    return ()


def _is_sampled(parameter: Parameter) -> bool:
    return parameter.default is msgspec.UNSET


def _samples(template: Template) -> dict[str, Value]:
    return {name: _sample(parameter) for name, parameter in template.parameters.items()}


def _sample(parameter: Parameter) -> Any:
    if not _is_sampled(parameter):
        return parameter.default
    one: Any = parameter.enum[0] if parameter.enum else None
    if parameter.type == "array":
        return [one if one is not None else SAMPLE_NAME]
    if one is not None:
        return one
    if parameter.type == "boolean":
        return True
    if parameter.type == "string":
        return SAMPLE_NAME
    return parameter.minimum if parameter.minimum is not None else min(1, parameter.maximum or 1)
