"""Documents of a request: small ones are read at once, large ones by a process of the fork server.

The parsers hold the interpreter's lock, so a thread would hold up the loop as well. What comes back is packed, and is
unpacked in slices.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from roost.core.state.state import State
from roost.model.errors import Invalid
from roost.model.events import WorkloadSpec
from roost.model.spec.gates import CONDITIONS
from roost.model.spec.problems import ERRORS_MAX, Problems
from roost.model.spec.rules import compiled
from roost.model.spec.submission import spec_of_document
from roost.model.spec.templates.use import is_templated, spec_of_use
from roost.model.spec.text import decode_json, decode_yaml
from roost.server.operations.context import Call
from roost.server.operations.work.templates import TemplateFinder
from roost.server.waiting import Slices

BODY_BYTES_MAX = 8 << 20  # ten thousand documents of 800 bytes
BATCH_MAX = 10_000  # documents in one request
QUICK_BYTES_MAX = 16 << 10  # read at once: some 3 ms of YAML
QUICK_TEMPLATES_BYTES_MAX = 4 << 10  # of templates that are rendered at once: some 3 ms
QUICK_DOCUMENTS_MAX = 50  # checked at once: 35 µs each, 250 µs with as many affinity rules as there can be
QUICK_RULES_MAX = 8  # compiled at once: 0.1 ms each, 1.5 ms for the longest
RULES_MAX = 256  # different ones in a request: the server compiles them, and keeps 4,096
PIECE = 100  # specifications that are unpacked at once: less than a millisecond


class Documents(msgspec.Struct, frozen=True):
    """A workload document, or a list of them, as it was sent."""

    text: bytes
    is_yaml: bool = False
    one_instance: bool = False  # refuse arrays and schedules, which have no single run to follow


async def read_one(call: Call, document: Documents) -> WorkloadSpec:
    (wanted,) = await _read(call, document, is_list=False)
    return wanted


async def read_batch(call: Call, documents: Documents) -> tuple[WorkloadSpec, ...]:
    """The workloads of a list. Raises everything that is wrong with them."""
    return await _read(call, documents, is_list=True)


async def _read(call: Call, documents: Documents, *, is_list: bool) -> tuple[WorkloadSpec, ...]:
    if len(documents.text) <= QUICK_BYTES_MAX:
        raws = decoded(documents, is_list)
        if len(raws) <= QUICK_DOCUMENTS_MAX and sum(map(count_rules, raws)) <= QUICK_RULES_MAX:
            if not any(map(is_templated, raws)):
                return tuple(_checked(raws, documents, is_list))
            finder = TemplateFinder(await call.state(), call.principal)
            if _is_quick(raws, finder):
                return tuple(_checked(raws, documents, is_list, finder))
    who = call.principal.name
    pieces = await call.context.reading.ask(partial(_packed_plain, documents, is_list), who)
    if pieces is None:  # only a fork of this process has the templates
        pieces = await call.context.questions.ask(
            lambda state: _packed(documents, is_list, TemplateFinder(state, call.principal)), who
        )
    return await unpacked(pieces)


async def unpacked(pieces: Iterable[bytes]) -> tuple[WorkloadSpec, ...]:
    """Specifications that another process has packed."""
    slices = Slices()
    wanted: list[WorkloadSpec] = []
    for piece in pieces:
        wanted += _UNPACK.decode(piece)
        await slices.pause()
    for spec in wanted:  # compiled here too, so that no step has to
        for rule in _rules_of([spec]):
            compiled(rule)
            await slices.pause()
        if spec.policy.condition:
            CONDITIONS.compiled(spec.policy.condition)
            await slices.pause()
    return tuple(wanted)


def _packed_plain(documents: Documents, is_list: bool, _: State) -> list[bytes] | None:
    """None: some are made from templates."""
    raws = decoded(documents, is_list)
    return None if any(map(is_templated, raws)) else pack(_checked(raws, documents, is_list))


def _packed(documents: Documents, is_list: bool, finder: TemplateFinder) -> list[bytes]:
    return pack(_checked(decoded(documents, is_list), documents, is_list, finder))


def pack(wanted: list[WorkloadSpec]) -> list[bytes]:
    return [msgspec.msgpack.encode(wanted[start : start + PIECE]) for start in range(0, len(wanted), PIECE)]


def decoded(documents: Documents, is_list: bool) -> list[Any]:
    raw = (decode_yaml if documents.is_yaml else decode_json)(documents.text)
    if not is_list:
        return [raw]
    if not isinstance(raw, list):
        raise Invalid("$", "a batch is a list of workloads")
    if not 1 <= len(raw) <= BATCH_MAX:
        raise Invalid("$", f"a batch has 1 to {BATCH_MAX:,} workloads, not {len(raw):,}")
    return raw


def _is_quick(raws: list[Any], finder: TemplateFinder) -> bool:
    """Whether the templates of these documents are few and small enough to be rendered at once."""
    found = [finder.peek(raw) for raw in raws if is_templated(raw)]
    rules = sum(count_rules(template.workload) for template, _ in found if template is not None)
    return rules <= QUICK_RULES_MAX and sum(size for _, size in found) <= QUICK_TEMPLATES_BYTES_MAX


def _checked(
    raws: list[Any], documents: Documents, is_list: bool, finder: TemplateFinder | None = None
) -> list[WorkloadSpec]:
    problems = Problems()
    wanted: list[WorkloadSpec] = []
    rules = RuleLimit()
    for number, raw in enumerate(raws):
        path = f"[{number}]" if is_list else ""
        spec = problems.check(_spec, raw, path, finder)
        if spec is not None:
            problems.check(_check_single, documents, spec)
        wanted.append(spec)
        if spec is not None:
            rules.add(spec, f"[{number}].placement")
        if len(problems.found) > ERRORS_MAX:
            break
    problems.refuse()
    return wanted


class RuleLimit:
    """Counts the different rules of a request."""

    def __init__(self) -> None:
        self._rules: set[str] = set()

    def add(self, spec: WorkloadSpec, path: str) -> None:
        self._rules.update(_rules_of([spec]))
        if spec.policy.condition:
            self._rules.add(spec.policy.condition)
        if len(self._rules) > RULES_MAX:
            message = f"a request may have {RULES_MAX} different rules; send the workloads in several requests"
            raise Invalid(path, message)


def _spec(raw: Any, path: str, finder: TemplateFinder | None) -> WorkloadSpec:
    if finder is None or not is_templated(raw):
        return spec_of_document(raw, path)
    spec, size = spec_of_use(raw, path, finder.find)
    finder.take(size)
    return spec


def _check_single(documents: Documents, spec: WorkloadSpec) -> None:
    if documents.one_instance and (spec.count != 1 or spec.policy.schedule):
        raise Invalid("template", "what is followed is one instance that runs once; schedule it, and attach to a run")


def _rules_of(wanted: Iterable[WorkloadSpec]) -> Iterator[str]:
    for spec in wanted:
        ask = spec.policy.ask
        yield from ask.require
        yield from ask.require_now
        for rule, _ in ask.prefer:
            yield rule


def count_rules(raw: Any) -> int:
    """How many rules and conditions a document has, before it is known to be one."""
    if not isinstance(raw, dict):
        return 0
    placement = raw.get("placement")
    lists = [placement.get(field) for field in ("require", "prefer")] if isinstance(placement, dict) else []
    return sum(len(found) for found in lists if isinstance(found, list)) + ("if" in raw)


_UNPACK = msgspec.msgpack.Decoder(list[WorkloadSpec])
