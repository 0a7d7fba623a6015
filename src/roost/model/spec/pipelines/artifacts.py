"""Artifacts: files that an action keeps, and that the actions which need it get. They become outputs and inputs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from roost.model.errors import Invalid
from roost.model.spec.files import OutputBlock, OutputsWhen, check_outputs, outputs_of
from roost.model.spec.pipelines.labels import name_of
from roost.model.spec.placement import between
from roost.model.spec.reading import read
from roost.model.states import Milestone

NONE = "none"
FROM_MAX = 64  # as many as an action may need


class ArtifactFields(msgspec.Struct, forbid_unknown_fields=True, rename={"sources": "from"}):
    """`paths`: what an action keeps; `from`: the actions whose artifacts it gets, else all that it needs."""

    paths: list[str | OutputBlock] = []
    when: OutputsWhen = OutputsWhen.ALWAYS
    required: bool = False
    sources: list[str] | None = None


class Artifacts(NamedTuple):
    outputs: tuple[OutputBlock, ...] = ()  # what an action keeps
    sources: tuple[str, ...] | None = None  # the names of the actions whose artifacts it gets; None: all it needs

    @property
    def documents(self) -> list[dict[str, Any]]:
        """As outputs of a document."""
        return [msgspec.to_builtins(block) for block in self.outputs]


def read_artifacts(raw: object, needs: Mapping[str, str], path: str) -> Artifacts:
    """`["dist/**"]`, `none`, or `{paths, when, required, from}`. `needs`: what the action waits for, by name."""
    if raw == NONE:
        return Artifacts(sources=())
    if not isinstance(raw, list | dict):
        raise Invalid(path, f"this is a list of paths, a mapping with paths and from, or {NONE}; not {raw!r:.60}")
    fields = read(raw if isinstance(raw, dict) else {"paths": raw}, ArtifactFields, path)
    here = path if isinstance(raw, list) else f"{path}.paths"
    check_outputs(fields.paths, here)
    blocks = [
        block if isinstance(given, OutputBlock) else OutputBlock(block.path, fields.when, fields.required)
        for given, block in zip(fields.paths, outputs_of(fields.paths), strict=True)
    ]
    return Artifacts(tuple(blocks), _sources(fields.sources, needs, f"{path}.from"))


def _sources(titles: Sequence[str] | None, needs: Mapping[str, str], path: str) -> tuple[str, ...] | None:
    if titles is None:
        return None
    between(len(titles), 0, FROM_MAX, path, "actions")
    for number, title in enumerate(titles):
        when = needs.get(name_of(title))
        if when is None:
            existing = ", ".join(needs) or "nothing"
            raise Invalid(f"{path}[{number}]", f"the action needs {existing}; add {title!r:.60} to `needs`")
        if when == Milestone.STARTED:
            raise Invalid(
                f"{path}[{number}]", "artifacts are there when an action has ended; it is only awaited to start"
            )
    return tuple(map(name_of, titles))


def artifact_inputs(name: str, kept: Artifacts, *, has_outputs: bool, is_array: bool) -> list[dict[str, Any]]:
    """The artifacts of an action as inputs of another: all of its outputs, if it has no others.

    Those of an array have a folder with the name of their action, as two arrays would share their indexes otherwise.
    """
    given: dict[str, Any] = {"workload": name, "optional": True, **({"to": name} if is_array else {})}
    return [{**given, "path": block.path} for block in kept.outputs] if has_outputs else [given]
