"""The field `retries` of a document: how often, and after which ends."""

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.spec.placement import between
from roost.model.spec.problems import check_each, indexed

RETRY_CAUSES = ("lost", "failed", "timed_out")
EXIT_CAUSES = frozenset(f"exit:{code}" for code in range(limits.EXIT_CODE_MAX + 1))


class Retries(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    max: int = limits.DEFAULT_RETRIES
    on: tuple[str, ...] = ("lost",)


def check_retries(retries: Retries, path: str) -> None:
    between(retries.max, 0, limits.RETRIES_MAX, f"{path}.max")
    between(len(retries.on), 0, limits.RULES_MAX, f"{path}.on", "causes")
    check_each(_check_cause, indexed(retries.on, f"{path}.on"))


def _check_cause(cause: str, path: str) -> None:
    if cause not in RETRY_CAUSES and cause not in EXIT_CAUSES:
        raise Invalid(path, f"a cause is {', '.join(RETRY_CAUSES)} or exit:CODE, not {cause!r:.60}")
