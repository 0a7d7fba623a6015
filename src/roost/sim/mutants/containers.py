"""Rules of containers and their images switched off, one at a time; see core.py."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from roost.agent.actor import Actor
from roost.agent.machine import AgentMachine
from roost.core.lifecycle import restarts
from roost.drivers.container import engine
from roost.drivers.container.engine import NODE_LABEL
from roost.drivers.container.image_ledger import ImageLedger
from roost.model.reasons.attempts import InputsFailed
from roost.sim.mutants.core import Rule, mutant, without

without(
    "orphaned_containers_stay",
    "Containers that no run has are not removed.",
    (engine, "orphans", lambda containers, node, is_live: []),
)


@mutant(engine, "orphans")
def containers_of_others_are_orphans(
    orphans: Rule, containers: Iterable[dict[str, Any]], node: str, is_live: Callable[[str], bool]
) -> Any:
    """Containers are removed whatever node their labels name."""
    return orphans([{**item, "Labels": {**item["Labels"], NODE_LABEL: node}} for item in containers], node, is_live)


@mutant(engine, "orphans")
def live_containers_are_orphans(orphans: Rule, containers: Any, node: str, is_live: Any) -> Any:
    """Containers are removed without asking whether their runs live."""
    return orphans(containers, node, lambda run: False)


@mutant(ImageLedger, "removable")
def images_of_live_attempts_are_removed(removable: Rule, self: ImageLedger, is_live: Any) -> Any:
    """An image may go between its pull and the start of its container."""
    return removable(self, lambda token: False)


@mutant(ImageLedger, "used")
def images_of_others_are_ours(used: Rule, self: ImageLedger, *given: Any, is_ours: bool) -> Any:
    """Images that were here before any run wanted them are removed as well."""
    return used(self, *given, is_ours=True)


@mutant(AgentMachine, "fetched")
def failed_pulls_do_not_count(fetched: Rule, self: AgentMachine, token: int, failure: Any, *given: Any) -> Any:
    """A container begins although its image could not be fetched."""
    return fetched(self, token, None, *given)


without(
    "images_are_not_reported",
    "No record says of which image a container is.",
    (Actor, "identified", lambda self, token, digest, pulled_ms: None),
)


@mutant(restarts, "_tries_again")
def final_failures_are_retried(tries_again: Rule, *given: Any) -> Any:
    """What no node can fetch is tried again and again."""
    return tries_again(
        *[
            InputsFailed(msgspec.structs.replace(item.failure, is_final=False))
            if isinstance(item, InputsFailed)
            else item
            for item in given
        ]
    )
