"""Inputs of a document that are paths of this machine: found, sent, and replaced by the digests of what was sent."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roost.client.errors import CannotSend
from roost.model.limits import DEFAULT_PROJECT
from roost.model.spec.files import BLOB, SHA256

Send = Callable[[dict[str, Path], str], str]  # paths here by their path in the set, and the project: the digest
Change = Callable[[Mapping[str, Any], str], Any]  # an input that is a path of this machine, and its place


def with_digests(document: Any, send: Send) -> Any:
    """A workload or pipeline with what was sent in place of paths of this machine. Raises CannotSend."""
    project = document.get("project") if isinstance(document, Mapping) else None

    def sent(block: Mapping[str, Any], place: str) -> Any:
        to, paths = _placed(block)
        try:
            return {**block, "from": send(paths, project or DEFAULT_PROJECT), "to": to}
        except CannotSend as error:
            raise CannotSend(f"{place}.from", error.message, error.hint) from None

    return _changed(document, sent)


def with_absolute_paths(document: Any, folder: Path) -> Any:
    """The same document, whose relative paths of this machine were relative to a folder."""
    return _changed(document, lambda block, _: {**block, "from": _absolute(block["from"], folder)})


def has_local_inputs(document: Any) -> bool:
    found: list[str] = []
    _changed(document, lambda block, place: found.append(place))
    return bool(found)


def _changed(document: Any, change: Change, place: str = "") -> Any:
    """Documents of workloads have inputs; those of pipelines have actions with inputs. Any other stays as it is."""
    if not isinstance(document, Mapping):
        return document
    made = dict(document)
    if isinstance(document.get("inputs"), list):
        made["inputs"] = [
            change(block, f"{place}inputs[{number}]") if _is_local(block) else block
            for number, block in enumerate(document["inputs"])
        ]
    if isinstance(document.get("actions"), list):
        made["actions"] = [
            _changed(action, change, f"actions[{number}].") for number, action in enumerate(document["actions"])
        ]
    return made


def _is_local(block: Any) -> bool:
    source = block.get("from") if isinstance(block, Mapping) else None
    return isinstance(source, str) and bool(source) and not source.startswith((BLOB, SHA256))


def _absolute(text: str, folder: Path) -> str:
    slash = "/" if text.endswith("/") else ""
    return os.path.join(os.path.abspath(folder), os.path.expanduser(text)).rstrip("/") + slash


def _placed(block: Mapping[str, Any]) -> tuple[Any, dict[str, Path]]:
    """Where the set goes, and what it has. For a file, `to` is its new name, or with a slash at its end a folder."""
    path, to = Path(block["from"]).expanduser(), block.get("to", "")
    if path.is_dir() or not isinstance(to, str):
        return to, {"": path}
    if not to or to.endswith("/"):
        return to, {path.name: path}
    head, name = os.path.split(to)
    return head, {name: path}
