"""Inputs, outputs and cache of a workload document: where files come from, where they go, which of them are kept."""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.keys import workload_key
from roost.model.records.files import INPUT_WAITS_FOR, FileSet, Input
from roost.model.records.workload import After
from roost.model.spec.names import check_name
from roost.model.spec.placement import between
from roost.model.spec.problems import check_each, indexed
from roost.model.spec.units import byte_count
from roost.model.states import Milestone, WorkloadKind

BLOB = "blob:"
SHA256 = "sha256:"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
HEX = re.compile(r"[0-9a-f]{64}")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
URLS = ("https://", "http://")
CACHE_PATHS_MAX = 20  # of one cache
CACHE_RESTORE_MAX = 10  # prefixes that are tried; each is a search among the entries of a project
NOTHING = "none"  # the hash of no files: a key has to say something
HASH_LENGTH = 16  # hexadecimal digits: two of a million different keys meet once in ten trillion times
_PLACEHOLDER = re.compile(r"\{(?:(arch)|(hash|env):([^{}]+))\}")


class InputBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename={"source": "from"}):
    """One input. Exactly one of `from`, `workload` and `url` is there.

    `from` is `blob:NAME`, or the `sha256:` of files that were sent. The command line and the Python client also take
    a path of this machine: they send the files, and put their digest here.
    """

    source: str = ""
    workload: str = ""
    path: str = ""
    url: str = ""
    sha256: str = ""
    to: str = ""
    optional: bool = False


class OutputsWhen(StrEnum):
    ALWAYS = "always"  # also of attempts that failed or ran out of time
    SUCCESS = "success"


class OutputBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    path: str  # a pattern below the work directory; `**` is any number of folders
    when: OutputsWhen = OutputsWhen.ALWAYS
    required: bool = False  # without a match, the attempt fails
    size_max: int | str | None = None  # bytes of all files that match


def check_inputs(blocks: list[InputBlock], project: str, name: str, path: str) -> tuple[Input, ...]:
    """Inputs as the core knows them; those with a name or a digest still lack their files."""
    between(len(blocks), 0, limits.INPUTS_MAX, path, "inputs")
    return tuple(check_each(lambda block, at: _input(block, project, name, at), indexed(blocks, path)))


def _input(block: InputBlock, project: str, name: str, path: str) -> Input:
    given = [word for word in ("from", "workload", "url") if getattr(block, {"from": "source"}.get(word, word))]
    if len(given) != 1:
        raise Invalid(path, "give one of from, workload and url")
    for field in ("path", "sha256"):
        if getattr(block, field) and given[0] != {"path": "workload", "sha256": "url"}[field]:
            raise Invalid(f"{path}.{field}", f"belongs to {'workload' if field == 'path' else 'url'}")
    if block.optional and not block.workload:
        raise Invalid(f"{path}.optional", "belongs to workload: all other files are there when it is submitted")
    to = check_place(block.to, f"{path}.to")
    if block.workload:
        check_name(block.workload, f"{path}.workload")
        if block.workload == name:
            raise Invalid(f"{path}.workload", "a workload cannot have its own outputs as inputs")
        pattern = check_pattern(block.path, f"{path}.path") if block.path else ""
        return Input(to, workload=workload_key(project, block.workload), path=pattern, optional=block.optional)
    if block.url:
        url = _check_url(block, path)
        return Input(_file_place(to, url, path), url=url, sha256=block.sha256)
    if block.source.startswith(BLOB):
        check_name(block.source.removeprefix(BLOB), f"{path}.from")
    elif not DIGEST.fullmatch(block.source):
        message = "is blob:NAME or sha256:DIGEST here; `roost` and the Python client send files of this machine"
        raise Invalid(f"{path}.from", message)
    return Input(to, files=FileSet(block.source))


def with_inputs(after: tuple[After, ...], inputs: tuple[Input, ...], path: str) -> tuple[After, ...]:
    """Dependencies with those that inputs imply: outputs of a workload are there when it has ended."""
    found = {condition.workload: condition for condition in after}
    for position, item in enumerate(inputs):
        condition = found.setdefault(item.workload, After(item.workload, INPUT_WAITS_FOR)) if item.workload else None
        if condition is not None and condition.when == Milestone.STARTED:
            message = "has outputs when it has ended, but `after` waits only until it has started"
            raise Invalid(f"{path}[{position}].workload", message)
    between(len(found), 0, limits.AFTER_MAX, path, "workloads, with those of `after`")
    return tuple(found.values())


def check_outputs(blocks: list[str | OutputBlock], path: str) -> tuple[OutputBlock, ...]:
    between(len(blocks), 0, limits.OUTPUTS_MAX, path, "outputs")
    return tuple(check_each(_output, indexed(blocks, path)))


def outputs_of(blocks: list[str | OutputBlock]) -> list[OutputBlock]:
    """The blocks of a document that was checked."""
    return [OutputBlock(block) if isinstance(block, str) else block for block in blocks]


def _output(block: str | OutputBlock, path: str) -> OutputBlock:
    if isinstance(block, str):
        return OutputBlock(check_pattern(block, path))
    check_pattern(block.path, f"{path}.path")
    if block.size_max is not None and not byte_count(block.size_max, f"{path}.size_max"):
        raise Invalid(f"{path}.size_max", "must be more than nothing; leave it out for no limit")
    return block


def check_place(text: str, path: str) -> str:
    """A relative path that stays below the work directory; "" and "." are the directory itself."""
    names = [name for name in text.split("/") if name not in ("", ".")]
    if text.startswith("/") or ".." in names:
        raise Invalid(path, "this has to be a path below the work directory, without ..")
    if CONTROL.search(text) or len(text.encode(errors="replace")) > limits.FILE_PATH_BYTES_MAX:
        raise Invalid(path, f"has at most {limits.FILE_PATH_BYTES_MAX} bytes, none of them a control character")
    return "/".join(names)


def check_pattern(text: str, path: str) -> str:
    """A pattern of paths: `*` and `?` inside a name, `**` for any number of folders."""
    place = check_place(text, path)
    if not place:
        raise Invalid(path, "names no file; use ** for everything in the work directory")
    return place


def _check_url(block: InputBlock, path: str) -> str:
    has_host = block.url.startswith(URLS) and block.url.partition("://")[2].partition("/")[0]
    if not has_host or CONTROL.search(block.url) or len(block.url) > limits.URL_LENGTH_MAX:
        raise Invalid(f"{path}.url", f"is an http or https URL of at most {limits.URL_LENGTH_MAX} characters")
    if not HEX.fullmatch(block.sha256):
        raise Invalid(f"{path}.sha256", "is needed with url: the 64 hexadecimal digits of sha256sum")
    return block.url


def _file_place(to: str, url: str, path: str) -> str:
    """A URL is one file: without `to`, its name is the last part of the URL."""
    name = url.partition("?")[0].partition("#")[0].partition("://")[2].partition("/")[2].rpartition("/")[2]
    place = to or (check_place(name, f"{path}.url") if name != ".." else "")
    if not place:
        raise Invalid(f"{path}.to", "is needed: the URL ends without the name of a file")
    return place


class CacheBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Files that are kept from one run for later ones. In `key` and `restore`: {hash:PATTERN}, {env:NAME}, {arch}."""

    key: str
    paths: list[str]
    restore: list[str] = []


def check_cache(block: CacheBlock | None, kind: WorkloadKind, path: str) -> None:
    if block is None:
        return
    if kind != WorkloadKind.JOB:
        raise Invalid(path, f"a cache is for jobs, not for a {kind}")
    between(len(block.paths), 1, CACHE_PATHS_MAX, f"{path}.paths", "paths")
    between(len(block.restore), 0, CACHE_RESTORE_MAX, f"{path}.restore", "keys")
    _check_key(block.key, f"{path}.key")
    check_each(_check_key, indexed(block.restore, f"{path}.restore"))
    check_each(check_pattern, indexed(block.paths, f"{path}.paths"))


def is_cache_key(text: str) -> bool:
    return bool(text) and len(text.encode(errors="replace")) <= limits.CACHE_KEY_BYTES_MAX and not CONTROL.search(text)


def _check_key(text: str, path: str) -> None:
    if not is_cache_key(text):
        raise Invalid(path, f"has 1 to {limits.CACHE_KEY_BYTES_MAX} bytes, none of them a control character")
    for kind, argument in [(found[2], found[3]) for found in _PLACEHOLDER.finditer(text)]:
        if kind == "hash":
            check_pattern(argument, path)
    if re.search("[{}]", _PLACEHOLDER.sub("", text)):
        raise Invalid(path, "in braces are {hash:PATTERN}, {env:NAME} and {arch}")


def cache_key(text: str, hash_of: Callable[[str], str], env: Mapping[str, str], arch: str) -> str:
    """The key of a run. `hash_of`: of the files that match a pattern. Raises Invalid if it is too long."""

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return arch
        return hash_of(found[3])[:HASH_LENGTH] or NOTHING if found[2] == "hash" else env.get(found[3], "")

    key = _PLACEHOLDER.sub(value, text)
    if not is_cache_key(key):
        raise Invalid("cache.key", f"has at most {limits.CACHE_KEY_BYTES_MAX} bytes, none of them a control character")
    return key
