"""Documents of a request: small ones are read at once, large ones by the process that answers questions.

The parsers hold the interpreter's lock, so a thread would hold up the loop as well. What comes back is packed, and is
unpacked in slices.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from roost.model.errors import Invalid
from roost.model.events import WorkloadSpec
from roost.model.spec.problems import ERRORS_MAX, Problems
from roost.model.spec.rules import compiled
from roost.model.spec.submission import spec_of_document
from roost.model.spec.text import decode_json, decode_yaml
from roost.server.operations.context import Call
from roost.server.waiting import Slices

BODY_BYTES_MAX = 8 << 20  # ten thousand documents of 800 bytes
BATCH_MAX = 10_000  # documents in one request
QUICK_BYTES_MAX = 16 << 10  # read at once: some 3 ms of YAML
QUICK_DOCUMENTS_MAX = 50  # checked at once: 35 µs each, 250 µs with as many affinity rules as there can be
QUICK_RULES_MAX = 8  # compiled at once: 0.1 ms each, 1.5 ms for the longest
RULES_MAX = 256  # different ones in a request: the server compiles them, and keeps 4,096
PIECE = 100  # specifications that are unpacked at once: less than a millisecond
#: Drivers that do not exist yet, with the field of a document that asks for one.
NO_DRIVER = {
    "qemu": ("kind", "virtual machines cannot be run yet; use a job or a service"),
    "container": ("image", "containers cannot be run yet; without `image` it runs as a process on the node"),
}


class Documents(msgspec.Struct, frozen=True):
    """A workload document, or a list of them, as it was sent."""

    text: bytes
    is_yaml: bool = False


async def read_one(call: Call, document: Documents) -> WorkloadSpec:
    (wanted,) = await _read(call, document, is_list=False)
    return wanted


async def read_batch(call: Call, documents: Documents) -> tuple[WorkloadSpec, ...]:
    """The workloads of a list. Raises everything that is wrong with them."""
    return await _read(call, documents, is_list=True)


async def _read(call: Call, documents: Documents, *, is_list: bool) -> tuple[WorkloadSpec, ...]:
    if len(documents.text) <= QUICK_BYTES_MAX:
        raws = _decoded(documents, is_list)
        if len(raws) <= QUICK_DOCUMENTS_MAX and sum(map(_count_rules, raws)) <= QUICK_RULES_MAX:
            return tuple(_checked(raws, is_list))
    pieces = await call.context.reading.ask(lambda _: _packed(documents, is_list), call.principal.name)
    slices = Slices()
    wanted: list[WorkloadSpec] = []
    for piece in pieces:
        wanted += _UNPACK.decode(piece)
        await slices.pause()
    for rule in _rules_of(wanted):  # compiled here too, so that no pass over the queue has to
        compiled(rule)
        await slices.pause()
    return tuple(wanted)


def _packed(documents: Documents, is_list: bool) -> list[bytes]:
    wanted = _checked(_decoded(documents, is_list), is_list)
    return [msgspec.msgpack.encode(wanted[start : start + PIECE]) for start in range(0, len(wanted), PIECE)]


def _decoded(documents: Documents, is_list: bool) -> list[Any]:
    raw = (decode_yaml if documents.is_yaml else decode_json)(documents.text)
    if not is_list:
        return [raw]
    if not isinstance(raw, list):
        raise Invalid("$", "a batch is a list of workloads")
    if not 1 <= len(raw) <= BATCH_MAX:
        raise Invalid("$", f"a batch has 1 to {BATCH_MAX:,} workloads, not {len(raw):,}")
    return raw


def _checked(raws: list[Any], is_list: bool) -> list[WorkloadSpec]:
    problems = Problems()
    wanted: list[WorkloadSpec] = []
    rules: set[str] = set()
    for number, raw in enumerate(raws):
        path = f"[{number}]" if is_list else ""
        spec = problems.check(spec_of_document, raw, path)
        if spec is not None:
            problems.check(_check_driver, spec, path)
        wanted.append(spec)
        rules.update(_rules_of([spec]) if spec is not None else ())
        if len(rules) > RULES_MAX:
            message = f"a request may have {RULES_MAX} different rules; send the workloads in several requests"
            raise Invalid(f"[{number}].placement", message)
        if len(problems.found) > ERRORS_MAX:
            break
    problems.refuse()
    return wanted


def _check_driver(spec: WorkloadSpec, path: str) -> None:
    """Refuse work that no driver can run: it would never start."""
    if spec.policy.ask.driver in NO_DRIVER:
        field, message = NO_DRIVER[spec.policy.ask.driver]
        raise Invalid(f"{path}.{field}" if path else field, message)


def _rules_of(wanted: Iterable[WorkloadSpec]) -> Iterator[str]:
    for spec in wanted:
        ask = spec.policy.ask
        yield from ask.require
        yield from ask.require_now
        for rule, _ in ask.prefer:
            yield rule


def _count_rules(raw: Any) -> int:
    """How many rules a document has, before it is known to be one."""
    placement = raw.get("placement") if isinstance(raw, dict) else None
    if not isinstance(placement, dict):
        return 0
    lists = [placement.get(field) for field in ("require", "prefer")]
    return sum(len(found) for found in lists if isinstance(found, list))


_UNPACK = msgspec.msgpack.Decoder(list[WorkloadSpec])
